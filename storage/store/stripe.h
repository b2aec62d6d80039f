#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "storage/ec/codec.h"
#include "storage/store/read_plan.h"
#include "storage/wire/shard_format.h"

namespace millrace::storage::store {

/// Cuts a block into k + m sealed shards. `header` gives key, generation, TTL class and depth; the
/// rest of it is filled in here. The block is 1 to kMaxBlockBytes (CHECK).
std::vector<std::vector<std::byte>> seal_block(const ec::Codec& codec, ShardHeader header,
                                               std::span<const std::byte> block);

/// Puts a block together from k verified shards of one generation: bit i of `from` says that
/// shards[i] is one of them. `block` has the size that their headers give.
void open_block(const ec::Codec& codec, std::span<const std::vector<std::byte>> shards,
                MemberMask from, std::span<std::byte> block);

}  // namespace millrace::storage::store
