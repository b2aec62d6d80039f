#include "storage/store/stripe.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/check.h"
#include "common/str_cat.h"

namespace millrace::storage::store {

std::vector<std::vector<std::byte>> seal_block(const ec::Codec& codec, ShardHeader header,
                                               std::span<const std::byte> block) {
  CHECK(!block.empty() && block.size() <= kMaxBlockBytes);
  const auto k = static_cast<std::size_t>(codec.data_shards());
  const auto n = k + static_cast<std::size_t>(codec.parity_shards());
  const std::size_t payload = shard_payload_bytes(block.size(), codec.data_shards());
  header.data_shards = static_cast<std::uint8_t>(codec.data_shards());
  header.parity_shards = static_cast<std::uint8_t>(codec.parity_shards());
  header.block_bytes = static_cast<std::uint32_t>(block.size());
  header.payload_bytes = static_cast<std::uint32_t>(payload);

  std::vector<std::vector<std::byte>> shards(n);
  std::vector<std::span<const std::byte>> data;
  std::vector<std::span<std::byte>> parity;
  data.reserve(k);
  parity.reserve(n - k);
  for (std::size_t i = 0; i < n; ++i) {
    // Filled as it grows: zeros that are overwritten at once would cost as much as the encoding.
    shards[i].reserve(kShardHeaderBytes + payload);
    shards[i].resize(kShardHeaderBytes);
    if (i < k) {
      const std::span<const std::byte> rest = block.subspan(std::min(i * payload, block.size()));
      const std::span<const std::byte> part = rest.first(std::min(payload, rest.size()));
      shards[i].insert(shards[i].end(), part.begin(), part.end());
    }
    shards[i].resize(kShardHeaderBytes + payload);
    const std::span<std::byte> bytes = std::span(shards[i]).subspan(kShardHeaderBytes);
    if (i < k) {
      data.push_back(bytes);
    } else {
      parity.push_back(bytes);
    }
  }
  const absl::Status encoded = codec.encode(data, parity);
  CHECK(encoded.ok(), message_of(encoded));
  for (std::size_t i = 0; i < n; ++i) {
    header.shard_index = static_cast<std::uint8_t>(i);
    seal_shard(header, shards[i]);
  }
  return shards;
}

void open_block(const ec::Codec& codec, std::span<const std::vector<std::byte>> shards,
                MemberMask from, std::span<std::byte> block) {
  const std::size_t payload = shard_payload_bytes(block.size(), codec.data_shards());
  std::vector<ec::ShardInput> present;
  std::vector<ec::ShardOutput> wanted;
  // The last shard may reach beyond the block, and one that is lost then has no room in it.
  std::vector<std::vector<std::byte>> scratch;
  struct Tail {
    std::size_t begin;
    std::size_t count;
    std::size_t scratch;
  };
  std::vector<Tail> tails;
  present.reserve(shards.size());
  scratch.reserve(shards.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const bool is_there = (from >> i & 1) != 0;
    if (is_there) {
      present.push_back(
          {static_cast<int>(i), std::span(shards[i]).subspan(kShardHeaderBytes, payload)});
    }
    if (i >= static_cast<std::size_t>(codec.data_shards())) continue;
    const std::size_t begin = std::min(i * payload, block.size());
    const std::size_t count = std::min(payload, block.size() - begin);
    if (count == 0) continue;
    if (is_there) {
      std::memcpy(block.data() + begin, shards[i].data() + kShardHeaderBytes, count);
    } else if (count == payload) {
      wanted.push_back({static_cast<int>(i), block.subspan(begin, count)});
    } else {
      scratch.emplace_back(payload);
      wanted.push_back({static_cast<int>(i), scratch.back()});
      tails.push_back({begin, count, scratch.size() - 1});
    }
  }
  const absl::Status decoded = codec.reconstruct(present, wanted);
  CHECK(decoded.ok(), message_of(decoded));
  for (const Tail& tail : tails)
    std::memcpy(block.data() + tail.begin, scratch[tail.scratch].data(), tail.count);
}

}  // namespace millrace::storage::store
