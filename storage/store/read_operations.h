#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "storage/store/store_context.h"

namespace millrace::storage::store {

/// The reads of one core: each a ReadPlan, the shards that came for it, and its timers.
///
/// A shard's bytes belong to the answer that brought them until the block is put together, in one
/// go, from shards that are verified; the caller's memory is written then, and only then. What
/// comes later is counted, verified for the sake of repair, and let go.
class ReadOperations {
 public:
  explicit ReadOperations(StoreContext& context) : context_(context) {}

  void start(const StartRead& read, TimePoint now);
  void on_answer(const Outstanding& note, ShardReply reply, TimePoint now);
  void on_deadline(std::uint64_t attempt_id, TimePoint now);
  void on_overdue(std::uint64_t attempt_id, TimePoint now);
  /// Starts again what was refused for its old map.
  void on_map(TimePoint now);
  void stop();

 private:
  /// One try to read a block; a second one only follows a newer map.
  struct Attempt {
    StartRead read;
    std::shared_ptr<const StorageMap> map;
    std::shared_ptr<const ec::Codec> codec;
    const Group* group = nullptr;
    ReadPlan plan;
    int retries = 0;       ///< because of newer maps
    bool is_over = false;  ///< finished, or replaced by its retry
    bool was_hedged = false;
    std::size_t shard_bytes = 0;  ///< what an answer may bring
    std::vector<std::vector<std::byte>> shards;
    std::vector<ShardHeader> headers;
    std::vector<TimePoint> overdue_at;
    MemberMask missed = 0;  ///< of those waiting: their deadline was reported
  };
  struct Parked {
    StartRead read;
    std::uint64_t epoch = 0;
    int retries = 0;
  };
  using Attempts = std::map<std::uint64_t, Attempt>;

  void begin(const StartRead& read, int retries, TimePoint now);
  void begin_parked(TimePoint now);
  void ask(std::uint64_t attempt_id, Attempt& attempt, MemberMask members, TimePoint now);
  void arm_overdue(std::uint64_t attempt_id, const Attempt& attempt);
  ShardVerdict judge(Attempt& attempt, int member, ShardReply& reply);
  void act(std::uint64_t attempt_id, Attempt& attempt, const ReadStep& step, TimePoint now);
  void finish(Attempt& attempt);
  void finish_hit(Attempt& attempt);
  void miss(const StartRead& read, MissReason reason);
  void end(Attempt& attempt);
  void erase_if_settled(Attempts::iterator found);
  void admit_waiting(TimePoint now);
  void expire_unbegun(TimePoint now);
  bool has_room(const StorageMap& map) const;

  StoreContext& context_;
  Attempts attempts_;
  std::deque<StartRead> waiting_;
  std::vector<Parked> parked_;
  std::uint64_t rotation_ = 0;  ///< reads begun: says whom the next one leaves out
};

}  // namespace millrace::storage::store
