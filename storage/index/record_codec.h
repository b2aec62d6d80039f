#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "storage/index/shard_index.h"

namespace millrace::storage::index {

/// The bytes that a RocksDB index keeps, layout version 1. Numbers in values are little endian;
/// numbers in keys are big endian, so that the order of bytes is the order of values.

/// Column family "shards": key = the 32 bytes of the block key; value, 32 bytes:
///
///     0  1  layout version (1)
///     1  1  state: 0 pending, 1 published
///     2  1  TTL class
///     3  1  zero
///     4  4  depth
///     8  4  touch minute
///    12  4  bytes of the shard, header and payload
///    16  8  slot
///    24  8  generation
std::string encode_record(const ShardRecord& record);
/// nullopt: not such a value.
std::optional<ShardRecord> decode_record(std::string_view bytes);

std::string_view encode_block_key(const BlockKey& key);
std::optional<BlockKey> decode_block_key(std::string_view bytes);

/// Column family "ages", published shards alone: an empty value under a key of 40 bytes:
///
///     0  4  touch minute, big endian
///     4  4  2^32 - 1 - depth, big endian: the deepest first
///     8 32  block key
std::string encode_age_key(const ShardEntry& entry);
/// The block key in an age key; nullopt: not such a key.
std::optional<BlockKey> decode_age_key(std::string_view bytes);

/// Default column family, "identity":
///
///     0  2  layout version of this index (1)
///     2  2  layout version of the shards
///     4  4  bytes of a slot
///     8  8  slots
///    16  2  length of the cluster id, then its bytes
///     .  2  length of the target id, then its bytes
std::string encode_identity(const TargetIdentity& identity);
std::optional<TargetIdentity> decode_identity(std::string_view bytes);

/// Default column family, "minute": 4 bytes.
std::string encode_minute(std::uint32_t minute);
std::optional<std::uint32_t> decode_minute(std::string_view bytes);

/// Default column family, "place"; absent as long as the target has had none:
///
///     0  4  group
///     4  1  index of the shards
///     5  1  data shards of a block
///     6  1  parity shards
///     7  1  1: compared with all members, 0: not yet
std::string encode_place(const StoredPlace& place);
std::optional<StoredPlace> decode_place(std::string_view bytes);

}  // namespace millrace::storage::index
