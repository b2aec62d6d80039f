#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "storage/kv/block_key.h"
#include "storage/kv/ttl_class.h"

namespace millrace::storage {

/// Names one attempt to write a block. Shards of one key with different generations never meet in a
/// decode: two writers may have computed different, equally valid bytes.
using Generation = std::uint64_t;

/// Number of the layout below, in every shard and every request.
inline constexpr std::uint16_t kShardLayoutVersion = 1;
inline constexpr std::size_t kShardHeaderBytes = 128;
/// Slots and direct I/O are whole pages.
inline constexpr std::size_t kPageBytes = 4096;
/// Largest block and so largest message: nothing of ours comes near it.
inline constexpr std::size_t kMaxBlockBytes = std::size_t{4} << 20;
inline constexpr int kMaxGroupShards = 32;

/// What a sealed shard says about itself.
struct ShardHeader {
  BlockKey key;
  Generation generation = 0;  ///< never 0
  std::uint8_t shard_index = 0;
  std::uint8_t data_shards = 0;    ///< k
  std::uint8_t parity_shards = 0;  ///< m
  TtlClass ttl = TtlClass::kAgent;
  std::uint32_t depth = 0;          ///< of the block in its chain, 0-based
  std::uint32_t block_bytes = 0;    ///< of the whole block, before it was padded to k equal parts
  std::uint32_t payload_bytes = 0;  ///< of this shard: ceil(block_bytes / k), rounded up to 64
  bool operator==(const ShardHeader&) const = default;
};

/// Why a shard does not count. Each is an erasure to the reader and has a counter of its own.
enum class ShardDefect : std::uint8_t {
  kNone,
  kShort,       ///< fewer bytes than header and payload
  kMagic,       ///< not a shard: a hole that reads as zeros, foreign bytes
  kLayout,      ///< of another layout version, or lengths that contradict each other
  kChecksum,    ///< CRC32C
  kKey,         ///< of another block
  kIndex,       ///< of another member of the group
  kGeneration,  ///< of an older or newer write
};
/// Closed set, for metrics: "short", "magic", ...
const char* shard_defect_name(ShardDefect defect);

/// Bytes of one shard's payload for a block of that size.
std::size_t shard_payload_bytes(std::size_t block_bytes, int data_shards);
/// Bytes of header and payload.
std::size_t sealed_shard_bytes(std::size_t block_bytes, int data_shards);
/// Bytes of the slot that holds it: whole pages.
std::size_t slot_bytes_for(std::size_t block_bytes, int data_shards);

/// Writes the header of a shard whose payload lies at shard[kShardHeaderBytes ..]. It is made once,
/// by the writer of the block, stored and sent as it is, and checked by whoever uses the payload:
/// there is no place between the two where a byte may change unseen.
///
/// Little endian:
///
///     0  4  magic "MRSH"
///     4  2  layout version (1)
///     6  1  shard index
///     7  1  k
///     8  1  m
///     9  1  TTL class
///    10  2  zero
///    12  4  payload bytes
///    16  4  block bytes
///    20  4  depth
///    24  8  generation
///    32 32  key
///    64 60  zero
///   124  4  CRC32C of bytes [0, 124) and the payload
///   128     payload
void seal_shard(const ShardHeader& header, std::span<std::byte> shard);

/// The header, when bytes begin with a whole shard whose checksum holds (bytes behind it, up to the
/// end of the slot, are ignored); otherwise the defect. Reads nothing else than `bytes`.
ShardDefect read_shard(std::span<const std::byte> bytes, ShardHeader& header);

/// The key that the header names, with nothing checked: for refusals that need not wait for the
/// checksum. nullopt: too short for a header.
std::optional<BlockKey> peek_key(std::span<const std::byte> bytes);

/// read_shard, and the shard is the one that was asked for. `generation` 0 takes any.
ShardDefect verify_shard(std::span<const std::byte> bytes, const BlockKey& key,
                         std::uint8_t shard_index, Generation generation, ShardHeader& header);

}  // namespace millrace::storage
