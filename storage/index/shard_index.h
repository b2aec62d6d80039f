#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/kv/block_key.h"
#include "storage/wire/shard_format.h"

namespace rocksdb {
class FileSystem;
}

namespace millrace::storage::index {

enum class ShardState : std::uint8_t { kPending = 0, kPublished = 1 };

/// What a target knows of one shard.
struct ShardRecord {
  std::uint64_t slot = 0;
  Generation generation = 0;
  ShardState state = ShardState::kPending;
  TtlClass ttl = TtlClass::kAgent;
  std::uint32_t depth = 0;
  std::uint32_t touch_minute = 0;  ///< on the target's own clock (TargetIdentity::minute)
  std::uint32_t shard_bytes = 0;   ///< header and payload
  bool operator==(const ShardRecord&) const = default;
};

struct ShardEntry {
  BlockKey key;
  ShardRecord record;
  bool operator==(const ShardEntry&) const = default;
};

/// Whose metadata this is. Written at creation; opening for another target, cluster or layout is
/// refused with both values named.
struct TargetIdentity {
  std::string cluster_id;
  std::string target_id;
  std::uint16_t layout_version = kShardLayoutVersion;
  std::uint32_t slot_bytes = 0;
  std::uint64_t slot_count = 0;
  bool operator==(const TargetIdentity&) const = default;
};

/// A place in a group, as the map gives it to a target.
struct ShardPlace {
  std::uint32_t group_id = 0;
  std::uint8_t shard_index = 0;
  std::uint8_t data_shards = 0;
  std::uint8_t parity_shards = 0;
  bool operator==(const ShardPlace&) const = default;
};

/// What is true of all shards of a target together.
struct StoredPlace {
  ShardPlace place;  ///< that they are of
  /// Everything was compared with every other member of the group, and what lacked was made again.
  bool is_compared = false;
  bool operator==(const StoredPlace&) const = default;
};

struct PutShard {
  ShardEntry entry;
};
struct EraseShard {
  BlockKey key;
};
using IndexChange = std::variant<PutShard, EraseShard>;

enum class Durability {
  kSynced,    ///< on the medium when commit() returns
  kBuffered,  ///< may be lost by a crash; later kSynced commits carry it along, in order
};

/// Metadata of one target, one thread at a time. Every change keeps two orders consistent: by key,
/// and by age for eviction.
class ShardIndex {
 public:
  virtual ~ShardIndex() = default;

  virtual absl::StatusOr<std::optional<ShardRecord>> find(const BlockKey& key) = 0;
  /// One answer for each key.
  virtual absl::StatusOr<std::vector<std::optional<ShardRecord>>> find_many(
      std::span<const BlockKey> keys) = 0;

  /// All changes or none. After a failure nothing more is accepted (kFailedPrecondition): what is
  /// on the medium is then unknown until the index is opened again.
  virtual absl::Status commit(std::span<const IndexChange> changes, Durability durability) = 0;

  /// Up to `limit` entries behind `after` (nullopt: from the first), by key.
  virtual absl::StatusOr<std::vector<ShardEntry>> list(const std::optional<BlockKey>& after,
                                                       std::size_t limit) = 0;
  /// Up to `limit` published entries in the order of eviction: oldest touch minute first, in a
  /// minute the deepest first (tails go before heads: a block without those before it is useless),
  /// then by key. Starts behind `after` when given.
  virtual absl::StatusOr<std::vector<ShardEntry>> oldest(const std::optional<ShardEntry>& after,
                                                         std::size_t limit) = 0;
  /// Every entry once, in no promised order; for start-up. Stops at the first error of `visit`.
  virtual absl::Status for_each(const std::function<absl::Status(const ShardEntry&)>& visit) = 0;

  virtual const TargetIdentity& identity() const = 0;
  /// The target's clock in minutes: only ever grows, also over restarts, whatever the wall clock
  /// does. store_minute() is synced; an earlier minute changes nothing.
  virtual std::uint32_t stored_minute() const = 0;
  virtual absl::Status store_minute(std::uint32_t minute) = 0;
  /// nullopt: the target never had a place. store_place() is synced, and keeps its order with
  /// commits.
  virtual std::optional<StoredPlace> stored_place() const = 0;
  virtual absl::Status store_place(const StoredPlace& place) = 0;
};

/// In memory, for simulations and as the reference in tests.
std::unique_ptr<ShardIndex> make_memory_index(const TargetIdentity& identity);

struct RocksIndexOptions {
  std::string path;         ///< folder
  TargetIdentity identity;  ///< written when the folder is new, compared when not
  std::size_t cache_bytes = std::size_t{64} << 20;
  /// Of each of the two orders, before it goes to a file; bounds memory and the log that is read
  /// again at the next start.
  std::size_t write_buffer_bytes = std::size_t{16} << 20;
  /// Where RocksDB's own files go; null = the operating system. Tests lose and tear writes here.
  std::shared_ptr<rocksdb::FileSystem> file_system = {};
};
/// kFailedPrecondition: of another target, cluster, layout or geometry, or held by another process;
/// kDataLoss: damaged; kPermissionDenied, kResourceExhausted: of the disk. Each names the folder.
absl::StatusOr<std::unique_ptr<ShardIndex>> open_rocks_index(const RocksIndexOptions& options);

}  // namespace millrace::storage::index
