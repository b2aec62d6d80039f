#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/time_point.h"
#include "storage/ec/codec.h"
#include "storage/index/shard_index.h"
#include "storage/map/storage_map.h"
#include "storage/store/store_types.h"

namespace millrace::storage::sim {

/// Numbers targets; bit i of a TargetMask is target "t<i>".
using TargetMask = std::uint64_t;
std::string target_name(std::size_t number);
std::size_t target_number(const std::string& target_id);

/// One attempt to write a block, as its shards name it.
struct Attempt {
  std::uint64_t write = 0;
  std::shared_ptr<const std::vector<std::byte>> block;
  std::vector<std::vector<std::byte>> shards;  ///< as sealed, for every member
  bool is_publication_sent = false;
  bool is_acknowledged = false;
  bool is_evicted = false;  ///< somebody had reason to let go of it
  bool is_lost = false;     ///< fewer than k members could have it, after what befell them
  bool is_harmed = false;   ///< something befell a shard of it
  TargetMask holders = 0;   ///< have published it, undamaged
  /// Which shard of it a target has recorded: that of the place it had then.
  std::map<std::size_t, std::uint8_t> shard_of;
  std::optional<TimePoint> first_published;
  std::optional<TimePoint> acknowledged_at;
};

/// What a target does to the record of a block.
struct RecordChange {
  std::size_t target = 0;
  BlockKey key;
  std::optional<index::ShardRecord> before;
  std::optional<index::ShardRecord> after;
  bool is_certain = true;  ///< the commit did not fail
  bool may_evict = false;  ///< of what is the oldest; time or space say so
  /// Of the target, by the map that it goes by.
  std::optional<index::ShardPlace> place = {};
  bool is_leased = false;                ///< the key, to somebody that asked this target
  bool is_synced = true;                 ///< the slot that `after` names
  bool is_damaged = false;               ///< that slot, by the medium
  std::span<const std::byte> content{};  ///< of that slot
};

/// Knows every block that was ever written, by its bytes, and what may have become of it. What must
/// not happen is recorded in words, once each. Pure; one thread.
class Oracle {
 public:
  Oracle(int data_shards, int parity_shards);

  // What clients do.
  void on_write(std::uint64_t write, const BlockKey& key, std::vector<std::byte> block);
  /// A shard on its way: the attempt of a write, perhaps a new one.
  void on_shard_sent(std::span<const std::byte> shard);
  void on_publication_sent(const BlockKey& key, Generation generation);
  void on_write_finished(std::uint64_t write, store::WriteOutcome outcome, TimePoint now);
  void on_read_hit(const BlockKey& key, Generation generation, std::span<const std::byte> block);
  /// A block that was handed to an engine, which does not know its generation.
  void on_fetched(const BlockKey& key, std::span<const std::byte> block);

  // What happens to targets.
  void on_record_change(const RecordChange& change, TimePoint now);
  /// What a target that starts again knows: nothing published may be missing.
  void on_opened(std::size_t target, const std::map<BlockKey, index::ShardRecord>& records);
  /// A shard that lies on the medium of a member, as it is.
  void on_stored_shard(std::size_t target, const BlockKey& key, const index::ShardRecord& record,
                       std::uint8_t shard_index, std::span<const std::byte> content);
  void on_eviction(const BlockKey& key, Generation generation);
  void on_damaged(std::size_t target, const BlockKey& key);
  void on_wiped(std::size_t target);
  void on_map(const StorageMap& map);

  /// Blocks that every reader must find once the cluster has settled: key and generation.
  std::vector<std::pair<BlockKey, Generation>> expected() const;
  const Attempt* find(const BlockKey& key, Generation generation) const;
  /// Not before its time is a block old.
  bool may_have_expired(const BlockKey& key, Generation generation, std::chrono::minutes ttl,
                        TimePoint now) const;

  void fail(std::string what);
  const std::vector<std::string>& violations() const { return violations_; }

  struct Counts {
    std::uint64_t acknowledged = 0;
    std::uint64_t hits = 0;
    std::uint64_t evicted = 0;
    std::uint64_t lost = 0;
  };
  Counts counts() const;

 private:
  struct Write {
    BlockKey key;
    std::shared_ptr<const std::vector<std::byte>> block;
    Generation last_generation = 0;
  };
  using Name = std::pair<BlockKey, Generation>;

  Attempt* edit(const BlockKey& key, Generation generation);
  void check_new_record(const RecordChange& change, Attempt& attempt);
  void check_let_go(const RecordChange& change, Attempt& attempt);
  void let_go(Attempt& attempt, std::size_t target);
  TargetMask members_of(const BlockKey& key) const;
  TargetMask members_with_shard(const BlockKey& key, const Attempt& attempt) const;
  bool is_displaced(const RecordChange& change, const Attempt& attempt) const;
  void judge_loss(const BlockKey& key, Attempt& attempt) const;

  const std::unique_ptr<const ec::Codec> codec_;
  std::map<std::uint64_t, Write> writes_;
  std::map<BlockKey, std::vector<std::uint64_t>> writes_of_;
  std::map<Name, Attempt> attempts_;
  StorageMap map_;
  std::uint64_t hits_ = 0;
  std::vector<std::string> violations_;
};

}  // namespace millrace::storage::sim
