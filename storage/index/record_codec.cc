#include "storage/index/record_codec.h"

#include <cstring>

#include "common/check.h"

namespace millrace::storage::index {
namespace {

constexpr std::uint8_t kRecordVersion = 1;
constexpr std::uint16_t kIdentityVersion = 1;
constexpr std::size_t kRecordBytes = 32;
constexpr std::size_t kAgeKeyBytes = 40;
constexpr std::size_t kIdentityFixedBytes = 16;
constexpr std::size_t kPlaceBytes = 8;
constexpr std::size_t kMaxIdBytes = 0xffff;

template <typename T>
void append_little(std::string& bytes, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

template <typename T>
T get_little(std::string_view bytes, std::size_t offset) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value = static_cast<T>(
        value | (static_cast<T>(static_cast<std::uint8_t>(bytes[offset + i])) << (8 * i)));
  return value;
}

void append_big(std::string& bytes, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8)
    bytes.push_back(static_cast<char>((value >> shift) & 0xff));
}

void append_framed(std::string& bytes, const std::string& text) {
  CHECK(text.size() <= kMaxIdBytes);
  append_little(bytes, static_cast<std::uint16_t>(text.size()));
  bytes += text;
}

/// Takes a framed text from the front of `bytes`.
std::optional<std::string> take_framed(std::string_view& bytes) {
  if (bytes.size() < 2) return std::nullopt;
  const std::size_t size = get_little<std::uint16_t>(bytes, 0);
  if (bytes.size() < 2 + size) return std::nullopt;
  std::string text(bytes.substr(2, size));
  bytes.remove_prefix(2 + size);
  return text;
}

}  // namespace

std::string encode_record(const ShardRecord& record) {
  std::string bytes;
  bytes.reserve(kRecordBytes);
  append_little(bytes, kRecordVersion);
  append_little(bytes, static_cast<std::uint8_t>(record.state));
  append_little(bytes, static_cast<std::uint8_t>(record.ttl));
  append_little(bytes, std::uint8_t{0});
  append_little(bytes, record.depth);
  append_little(bytes, record.touch_minute);
  append_little(bytes, record.shard_bytes);
  append_little(bytes, record.slot);
  append_little(bytes, record.generation);
  return bytes;
}

std::optional<ShardRecord> decode_record(std::string_view bytes) {
  if (bytes.size() != kRecordBytes) return std::nullopt;
  const auto state = get_little<std::uint8_t>(bytes, 1);
  const auto ttl = get_little<std::uint8_t>(bytes, 2);
  if (get_little<std::uint8_t>(bytes, 0) != kRecordVersion ||
      state > static_cast<std::uint8_t>(ShardState::kPublished) ||
      ttl > static_cast<std::uint8_t>(TtlClass::kChatbot) ||
      get_little<std::uint8_t>(bytes, 3) != 0)
    return std::nullopt;
  ShardRecord record;
  record.state = static_cast<ShardState>(state);
  record.ttl = static_cast<TtlClass>(ttl);
  record.depth = get_little<std::uint32_t>(bytes, 4);
  record.touch_minute = get_little<std::uint32_t>(bytes, 8);
  record.shard_bytes = get_little<std::uint32_t>(bytes, 12);
  record.slot = get_little<std::uint64_t>(bytes, 16);
  record.generation = get_little<std::uint64_t>(bytes, 24);
  return record;
}

std::string_view encode_block_key(const BlockKey& key) {
  return {reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size()};
}

std::optional<BlockKey> decode_block_key(std::string_view bytes) {
  BlockKey key;
  if (bytes.size() != key.bytes.size()) return std::nullopt;
  std::memcpy(key.bytes.data(), bytes.data(), bytes.size());
  return key;
}

std::string encode_age_key(const ShardEntry& entry) {
  std::string bytes;
  bytes.reserve(kAgeKeyBytes);
  append_big(bytes, entry.record.touch_minute);
  append_big(bytes, ~entry.record.depth);
  bytes += encode_block_key(entry.key);
  return bytes;
}

std::optional<BlockKey> decode_age_key(std::string_view bytes) {
  if (bytes.size() != kAgeKeyBytes) return std::nullopt;
  return decode_block_key(bytes.substr(8));
}

std::string encode_identity(const TargetIdentity& identity) {
  std::string bytes;
  append_little(bytes, kIdentityVersion);
  append_little(bytes, identity.layout_version);
  append_little(bytes, identity.slot_bytes);
  append_little(bytes, identity.slot_count);
  append_framed(bytes, identity.cluster_id);
  append_framed(bytes, identity.target_id);
  return bytes;
}

std::optional<TargetIdentity> decode_identity(std::string_view bytes) {
  if (bytes.size() < kIdentityFixedBytes || get_little<std::uint16_t>(bytes, 0) != kIdentityVersion)
    return std::nullopt;
  TargetIdentity identity;
  identity.layout_version = get_little<std::uint16_t>(bytes, 2);
  identity.slot_bytes = get_little<std::uint32_t>(bytes, 4);
  identity.slot_count = get_little<std::uint64_t>(bytes, 8);
  bytes.remove_prefix(kIdentityFixedBytes);
  std::optional<std::string> cluster = take_framed(bytes);
  std::optional<std::string> target = take_framed(bytes);
  if (!cluster || !target || !bytes.empty()) return std::nullopt;
  identity.cluster_id = std::move(*cluster);
  identity.target_id = std::move(*target);
  return identity;
}

std::string encode_minute(std::uint32_t minute) {
  std::string bytes;
  append_little(bytes, minute);
  return bytes;
}

std::optional<std::uint32_t> decode_minute(std::string_view bytes) {
  if (bytes.size() != sizeof(std::uint32_t)) return std::nullopt;
  return get_little<std::uint32_t>(bytes, 0);
}

std::string encode_place(const StoredPlace& place) {
  std::string bytes;
  bytes.reserve(kPlaceBytes);
  append_little(bytes, place.place.group_id);
  append_little(bytes, place.place.shard_index);
  append_little(bytes, place.place.data_shards);
  append_little(bytes, place.place.parity_shards);
  append_little(bytes, static_cast<std::uint8_t>(place.is_compared ? 1 : 0));
  return bytes;
}

std::optional<StoredPlace> decode_place(std::string_view bytes) {
  if (bytes.size() != kPlaceBytes) return std::nullopt;
  const auto is_compared = get_little<std::uint8_t>(bytes, 7);
  if (is_compared > 1) return std::nullopt;
  StoredPlace place;
  place.place.group_id = get_little<std::uint32_t>(bytes, 0);
  place.place.shard_index = get_little<std::uint8_t>(bytes, 4);
  place.place.data_shards = get_little<std::uint8_t>(bytes, 5);
  place.place.parity_shards = get_little<std::uint8_t>(bytes, 6);
  place.is_compared = is_compared == 1;
  return place;
}

}  // namespace millrace::storage::index
