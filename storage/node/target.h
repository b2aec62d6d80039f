#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/time_point.h"
#include "storage/disk/slot_io.h"
#include "storage/index/shard_index.h"
#include "storage/node/lease_table.h"
#include "storage/node/node_metrics.h"
#include "storage/node/settings.h"
#include "storage/node/slot_table.h"
#include "storage/wire/messages.h"

namespace millrace::storage::node {

/// What is left of a target whose disk has failed. Only opening it again leads back.
enum class TargetState {
  kServing,
  kReadOnly,  ///< full, write-protected, or a sync or commit failed: what is stored is served
  kFailed,    ///< the medium is gone
};
const char* target_state_name(TargetState state);

/// One disk's shards: slots, index, leases, and the rules that keep a wrong byte from being served.
///
/// The order in which a write becomes visible:
///
///     slot written -> sync -> record "pending" committed -> answered -> record "published"
///
/// and in which space comes back: record erased (committed) -> no read in flight, grace over ->
/// slot free. A crash between any two leaves a shard that is whole and known, or one that nothing
/// names.
///
/// One thread. Events go in by handle(), on_completions(); end_turn() commits what they changed in
/// one batch and then answers. Nothing here waits for the slot file; the index is asked in line.
class Target {
 public:
  /// Reads the whole index, to learn which slots are used. `io`, `index` and `metrics` outlive it.
  /// kDataLoss: two records name one slot, or one that is not there; kFailedPrecondition: the slot
  /// file is smaller than the index says.
  static absl::StatusOr<std::unique_ptr<Target>> open(const TargetSettings& settings,
                                                      disk::SlotIo& io, index::ShardIndex& index,
                                                      const NodeMetrics& metrics, TimePoint now);

  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  /// Where the map has put it. nullopt: a spare, which serves nothing and keeps what it has. In
  /// another place than its shards are of, it lets go of all of them first, and serves nothing
  /// until it is empty; back in theirs, it keeps those that are left.
  void set_place(const std::optional<index::ShardPlace>& place);
  const std::optional<index::ShardPlace>& place() const { return place_; }
  bool is_emptying() const { return is_emptying_; }
  /// Everything here was compared with every other member, and what lacked was made again. Kept
  /// over restarts, so that a comparison that a crash has cut short is not forgotten.
  bool is_compared() const;
  void set_compared(bool is_compared);

  /// Takes a request; answers in this call or in a later one of this object.
  void handle(ShardOperation operation, ShardReplyCallback done, TimePoint now);
  void on_completions(std::vector<disk::SlotCompletion> completions, TimePoint now);
  /// Commits, answers, starts what is due. Call after each batch of events, and now and then.
  void end_turn(TimePoint now);

  // What maintenance works with.

  /// Reads and checks the target's own published shard.
  void read_own(const BlockKey& key, IoPurpose purpose, ShardReplyCallback done);
  /// From now on that generation of the block counts as being rebuilt: a drop of it that comes
  /// meanwhile ends it. False: the block is being rebuilt already, or a write of it is in flight.
  [[nodiscard]] bool begin_rebuild(const BlockKey& key, Generation generation);
  /// Stores a rebuilt sealed shard as published, in place of whatever is there. kNotFound: the
  /// block was dropped meanwhile. Ends the rebuild, whatever the answer.
  void store_rebuilt(std::vector<std::byte> shard, std::uint32_t touch_minute,
                     ShardReplyCallback done, TimePoint now);
  void abandon_rebuild(const BlockKey& key) { rebuilding_.erase(key); }

  /// From now on nobody is told that the block is here, and it cannot be leased. False: leased.
  [[nodiscard]] bool begin_eviction(const BlockKey& key, TimePoint now);
  /// Erases it, if it still is of that generation.
  void evict(const BlockKey& key, Generation generation, EvictReason reason);
  bool is_evicting(const BlockKey& key) const { return evicting_.count(key) > 0; }
  /// From begin_eviction() to the commit of the erasure.
  std::size_t evicting_count() const { return evicting_.size(); }

  struct Pending {
    Generation generation = 0;
    TimePoint since;
  };
  /// Written and not published, in order of keys.
  const std::map<BlockKey, Pending>& pending() const { return pending_; }
  /// The peers were asked about a pending shard in vain: ask again later.
  void postpone_pending(const BlockKey& key);

  /// Keys whose repair was asked for, oldest first; bounded, each once.
  std::optional<BlockKey> next_repair();
  /// False: the queue is full.
  [[nodiscard]] bool queue_repair(const BlockKey& key);
  std::size_t repair_backlog() const { return repairs_.size(); }

  index::ShardIndex& index() { return index_; }
  const index::ShardIndex& index() const { return index_; }
  const char* io_kind() const { return io_file_.kind(); }
  /// Shards that count.
  std::uint64_t published_count() const;
  const SlotTable& slots() const { return slots_; }
  const LeaseTable& leases() const { return leases_; }
  std::size_t io_in_flight() const { return io_.size(); }
  /// The target's clock: only grows while it runs, and goes on from there at the next start.
  std::uint32_t minute(TimePoint now) const;
  TargetState state() const { return state_; }
  /// Why it is not serving; empty when it is.
  const std::string& reason() const { return reason_; }
  /// Read-only for want of space alone: worth opening again when there may be some.
  bool is_full() const { return state_ == TargetState::kReadOnly && is_full_; }

 private:
  /// A shard on its way to the medium.
  struct Writing {
    index::ShardRecord record;
    ShardReplyCallback done;
    bool is_rebuilt = false;
    bool is_dropped = false;
  };
  struct Rebuilding {
    Generation generation = 0;
    bool is_dropped = false;  ///< meanwhile
  };
  struct Reading {
    BlockKey key;
    index::ShardRecord record;
    IoPurpose purpose = IoPurpose::kServe;
    std::uint8_t shard_index = 0;
    ShardReplyCallback done;
  };
  /// What a completion belongs to.
  struct InFlight {
    std::optional<BlockKey> written;
    std::optional<Reading> reading;
  };
  using Continuation = std::function<void(const absl::Status& committed)>;

  Target(const TargetSettings& settings, disk::SlotIo& io, index::ShardIndex& index,
         const NodeMetrics& metrics, TimePoint now);
  absl::Status load(TimePoint now);

  void write(WriteShard& operation, ShardReplyCallback done);
  void publish(const PublishShard& operation, const ShardReplyCallback& done, TimePoint now);
  void drop(const DropShard& operation, const ShardReplyCallback& done, TimePoint now);
  void query(const QueryKeys& operation, const ShardReplyCallback& done, TimePoint now);
  void touch(const TouchKeys& operation, const ShardReplyCallback& done, TimePoint now);
  void list(const ListShards& operation, const ShardReplyCallback& done, TimePoint now);

  ShardReply refuse_unless_writable() const;
  ShardReply check_new_shard(std::span<const std::byte> shard, ShardHeader& header) const;
  void start_write(const std::vector<std::byte>& shard, const ShardHeader& header,
                   std::uint32_t touch_minute, bool is_rebuilt, ShardReplyCallback done);

  void on_written(const BlockKey& key, const absl::Status& status);
  void on_read(Reading reading, const absl::Status& status, std::span<const std::byte> bytes);
  void ask_for_repair(const Reading& reading);
  void on_synced(const absl::Status& status);
  void store_record(const BlockKey& key, Writing writing);
  void start_sync();

  absl::StatusOr<std::optional<index::ShardRecord>> find(const BlockKey& key);
  ShardReply index_error(const absl::Status& status);
  void stage(index::IndexChange change, index::Durability durability, Continuation then);
  void stage_erase(const BlockKey& key, const index::ShardRecord& record, Continuation then);
  void commit();
  void expire_leases(TimePoint now);
  void store_minute(TimePoint now);
  bool store_place(const index::StoredPlace& place);
  void answer_while_emptying(const ShardOperation& operation, const ShardReplyCallback& done,
                             TimePoint now) const;
  void empty_some(TimePoint now);
  bool has_room_for_io() const;
  std::uint64_t submit(disk::IoKind kind, std::uint64_t slot, disk::PageBuffer buffer,
                       InFlight in_flight);
  void fail(TargetState state, std::string_view reason, bool is_full = false);
  void fail_index(const absl::Status& status);

  const TargetSettings settings_;
  disk::SlotIo& io_file_;
  index::ShardIndex& index_;
  const NodeMetrics& metrics_;
  const TimePoint started_;
  TimePoint now_;  // of the newest event
  std::uint32_t start_minute_ = 0;
  std::optional<index::ShardPlace> place_;
  bool is_emptying_ = false;
  std::optional<BlockKey> emptied_to_;  // of the round under way
  TargetState state_ = TargetState::kServing;
  std::string reason_;
  bool is_full_ = false;

  SlotTable slots_;
  LeaseTable leases_;
  std::unordered_map<BlockKey, Generation, BlockKeyHash> drops_at_lease_end_;
  std::unordered_set<BlockKey, BlockKeyHash> evicting_;
  std::unordered_map<BlockKey, Rebuilding, BlockKeyHash> rebuilding_;
  std::map<BlockKey, Pending> pending_;
  std::deque<BlockKey> repairs_;
  std::unordered_set<BlockKey, BlockKeyHash> repair_keys_;

  std::uint64_t next_io_id_ = 1;
  std::unordered_map<std::uint64_t, InFlight> io_;
  std::unordered_map<BlockKey, Writing, BlockKeyHash> writing_;
  std::vector<BlockKey> written_;  // wait for a sync
  std::vector<BlockKey> syncing_;  // are covered by the one in flight
  bool is_syncing_ = false;

  std::vector<index::IndexChange> changes_;  // of this turn
  index::Durability durability_ = index::Durability::kBuffered;
  std::unordered_map<BlockKey, std::optional<index::ShardRecord>, BlockKeyHash> staged_;
  std::vector<Continuation> continuations_;
  std::vector<std::function<void()>> after_commit_;
};

/// The key before another in order; nullopt for the first of all.
std::optional<BlockKey> key_before(BlockKey key);

}  // namespace millrace::storage::node
