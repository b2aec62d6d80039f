#include "storage/wire/shard_format.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/check.h"
#include "storage/ec/crc32c.h"

namespace millrace::storage {
namespace {

constexpr std::array<std::byte, 4> kMagic = {std::byte{'M'}, std::byte{'R'}, std::byte{'S'},
                                             std::byte{'H'}};
constexpr std::size_t kKeyOffset = 32;
constexpr std::size_t kChecksumOffset = 124;
constexpr std::size_t kPayloadAlignment = 64;  // what the erasure code is fastest at

template <typename T>
void put(std::span<std::byte> bytes, std::size_t offset, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    bytes[offset + i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
}

template <typename T>
T get(std::span<const std::byte> bytes, std::size_t offset) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value = static_cast<T>(value | (static_cast<T>(bytes[offset + i]) << (8 * i)));
  return value;
}

std::uint32_t checksum(std::span<const std::byte> shard) {
  return ec::crc32c_extend(ec::crc32c(shard.first(kChecksumOffset)),
                           shard.subspan(kShardHeaderBytes));
}

bool is_consistent(const ShardHeader& header) {
  return header.data_shards > 0 && header.data_shards + header.parity_shards <= kMaxGroupShards &&
         header.shard_index < header.data_shards + header.parity_shards && header.block_bytes > 0 &&
         header.block_bytes <= kMaxBlockBytes &&
         header.payload_bytes == shard_payload_bytes(header.block_bytes, header.data_shards) &&
         header.generation != 0;
}

}  // namespace

const char* shard_defect_name(ShardDefect defect) {
  switch (defect) {
    case ShardDefect::kNone:
      return "none";
    case ShardDefect::kShort:
      return "short";
    case ShardDefect::kMagic:
      return "magic";
    case ShardDefect::kLayout:
      return "layout";
    case ShardDefect::kChecksum:
      return "checksum";
    case ShardDefect::kKey:
      return "key";
    case ShardDefect::kIndex:
      return "index";
    case ShardDefect::kGeneration:
      return "generation";
  }
  return "unknown";
}

std::size_t shard_payload_bytes(std::size_t block_bytes, int data_shards) {
  const auto k = static_cast<std::size_t>(data_shards);
  const std::size_t part = (block_bytes + k - 1) / k;
  return (part + kPayloadAlignment - 1) / kPayloadAlignment * kPayloadAlignment;
}

std::size_t sealed_shard_bytes(std::size_t block_bytes, int data_shards) {
  return kShardHeaderBytes + shard_payload_bytes(block_bytes, data_shards);
}

std::size_t slot_bytes_for(std::size_t block_bytes, int data_shards) {
  return (sealed_shard_bytes(block_bytes, data_shards) + kPageBytes - 1) / kPageBytes * kPageBytes;
}

void seal_shard(const ShardHeader& header, std::span<std::byte> shard) {
  CHECK(is_consistent(header));
  CHECK(shard.size() == kShardHeaderBytes + header.payload_bytes);
  std::fill_n(shard.begin(), kShardHeaderBytes, std::byte{0});
  std::copy(kMagic.begin(), kMagic.end(), shard.begin());
  put(shard, 4, kShardLayoutVersion);
  put(shard, 6, header.shard_index);
  put(shard, 7, header.data_shards);
  put(shard, 8, header.parity_shards);
  put(shard, 9, static_cast<std::uint8_t>(header.ttl));
  put(shard, 12, header.payload_bytes);
  put(shard, 16, header.block_bytes);
  put(shard, 20, header.depth);
  put(shard, 24, header.generation);
  std::memcpy(shard.data() + kKeyOffset, header.key.bytes.data(), header.key.bytes.size());
  put(shard, kChecksumOffset, checksum(shard));
}

std::optional<BlockKey> peek_key(std::span<const std::byte> bytes) {
  if (bytes.size() < kShardHeaderBytes) return std::nullopt;
  BlockKey key;
  std::memcpy(key.bytes.data(), bytes.data() + kKeyOffset, key.bytes.size());
  return key;
}

ShardDefect read_shard(std::span<const std::byte> bytes, ShardHeader& header) {
  if (bytes.size() < kShardHeaderBytes) return ShardDefect::kShort;
  if (!std::equal(kMagic.begin(), kMagic.end(), bytes.begin())) return ShardDefect::kMagic;
  if (get<std::uint16_t>(bytes, 4) != kShardLayoutVersion) return ShardDefect::kLayout;
  ShardHeader read;
  read.shard_index = get<std::uint8_t>(bytes, 6);
  read.data_shards = get<std::uint8_t>(bytes, 7);
  read.parity_shards = get<std::uint8_t>(bytes, 8);
  const auto ttl = get<std::uint8_t>(bytes, 9);
  read.ttl = static_cast<TtlClass>(ttl);
  read.payload_bytes = get<std::uint32_t>(bytes, 12);
  read.block_bytes = get<std::uint32_t>(bytes, 16);
  read.depth = get<std::uint32_t>(bytes, 20);
  read.generation = get<std::uint64_t>(bytes, 24);
  std::memcpy(read.key.bytes.data(), bytes.data() + kKeyOffset, read.key.bytes.size());
  // The checksum is judged before the meaning of the fields, where lengths allow it: a flipped bit
  // in a length is a damaged shard, not one of another layout.
  if (read.payload_bytes > kMaxBlockBytes) return ShardDefect::kLayout;
  if (bytes.size() < kShardHeaderBytes + read.payload_bytes) return ShardDefect::kShort;
  const std::span<const std::byte> shard = bytes.first(kShardHeaderBytes + read.payload_bytes);
  if (checksum(shard) != get<std::uint32_t>(bytes, kChecksumOffset)) return ShardDefect::kChecksum;
  if (!is_consistent(read) || ttl > static_cast<std::uint8_t>(TtlClass::kChatbot))
    return ShardDefect::kLayout;
  header = read;
  return ShardDefect::kNone;
}

ShardDefect verify_shard(std::span<const std::byte> bytes, const BlockKey& key,
                         std::uint8_t shard_index, Generation generation, ShardHeader& header) {
  const ShardDefect defect = read_shard(bytes, header);
  if (defect != ShardDefect::kNone) return defect;
  if (header.key != key) return ShardDefect::kKey;
  if (header.shard_index != shard_index) return ShardDefect::kIndex;
  if (generation != 0 && header.generation != generation) return ShardDefect::kGeneration;
  return ShardDefect::kNone;
}

}  // namespace millrace::storage
