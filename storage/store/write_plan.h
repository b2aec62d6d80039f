#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/time_point.h"
#include "storage/map/storage_map.h"
#include "storage/store/read_plan.h"
#include "storage/wire/messages.h"

namespace millrace::storage::store {

/// What became of a write. Closed set, for metrics.
enum class WriteOutcome : std::uint8_t {
  kStored,         ///< published by a quorum: any reader finds it, two nodes may die
  kAlreadyThere,   ///< the block was stored before: as good
  kLostRace,       ///< another writer of the same block is ahead: as good, most likely
  kTooFewMembers,  ///< the map shows fewer members up than a quorum
  kTooFewShards,   ///< fewer than a quorum could be written
  kUnconfirmed,  ///< written, but fewer than a quorum said that they published it: it may be there
  kDeadline,     ///< the caller's time was over before the quorum
  kBusy,         ///< a queue of this process is full
  kNoMap,        ///< no map yet, or none as new as a node wants
  kInvalid,      ///< empty, or larger than the map's blocks
  kShutdown,     ///< this process is stopping
};
inline constexpr int kWriteOutcomes = 11;
/// "stored", "already_there", ...
const char* write_outcome_name(WriteOutcome outcome);

/// How many of n = k + m members must have a shard before a block counts: n - 1, so that one more
/// may die than the code alone allows for; k while the map shows m members down, because there are
/// no more. Never less than k.
int write_quorum(const Group& group, int data_shards, int parity_shards);

/// What to do after an event; bit i is member i.
struct WriteStep {
  MemberMask write = 0;    ///< send these WriteShard
  MemberMask publish = 0;  ///< PublishShard
  MemberMask drop = 0;     ///< DropShard of our generation; nobody waits for the answers
  MemberMask repair = 0;   ///< RepairShard; nobody waits for the answers
};

/// The write of one block. Pure.
///
///     WriteShard to every member that is not down
///     quorum of kOk        -> PublishShard to those, and to each that follows
///     quorum of published  -> stored; whoever failed is repaired
///     no quorum possible   -> DropShard to those that have it; the reason is the outcome
///
/// First writer wins, and a stored block is never replaced. A member with another writer's pending
/// shard: the lower generation gives up at once, the higher tries that member again a few times. A
/// member with a published shard of another generation will not take ours: with so many of them
/// that our quorum is out of reach, the block is there already; with fewer, they are left over from
/// a stripe that has died (its k shards cannot exist beside our quorum), and are repaired.
class WritePlan {
 public:
  WritePlan(const Group& group, int data_shards, int parity_shards, Generation generation);

  WriteStep start();
  /// The answer to the WriteShard or PublishShard that the member was sent last (CHECK).
  WriteStep on_reply(int member, ShardResult result, Generation theirs, bool is_published,
                     TimePoint now);
  /// Retries that are due.
  WriteStep on_timer(TimePoint now);
  std::optional<TimePoint> next_retry() const;
  /// The caller's time is over.
  WriteStep on_deadline();
  /// Gives up for a reason from outside (a newer map, the end of the process), unless the end is
  /// decided or the block half published already.
  WriteStep abandon(WriteOutcome outcome);

  std::optional<WriteOutcome> outcome() const { return outcome_; }
  /// The end is decided, and no answer or retry is outstanding.
  bool is_settled() const;
  MemberMask waiting() const { return in(State::kWriting) | in(State::kPublishing); }
  Generation generation() const { return generation_; }

 private:
  enum class State : std::uint8_t {
    kDown,
    kWriting,
    kWriteAgain,  ///< another writer's shard is in the way; at retry_at_
    kStored,
    kPublishing,
    kPublishAgain,
    kPublished,
    kFailed,
  };
  struct Progress {
    State state = State::kWriting;
    int attempts = 0;
    TimePoint retry_at{};
  };

  void on_write_reply(int member, ShardResult result, Generation theirs, bool is_published,
                      TimePoint now);
  void on_publish_reply(int member, ShardResult result, TimePoint now);
  void retry_or_fail(Progress& progress, State again, TimePoint now);
  WriteStep judge();
  void decide(WriteOutcome outcome);
  MemberMask in(State state) const;
  int count(State state) const;

  const int quorum_;
  const Generation generation_;
  std::array<Progress, kMaxGroupShards> progress_{};
  int members_ = 0;
  bool is_publishing_ = false;
  bool is_aborted_ = false;      ///< what is stored must go
  bool has_lower_ours_ = false;  ///< another writer is ahead
  bool saw_published_ = false;
  bool saw_pending_ = false;
  MemberMask uncertain_ = 0;  ///< failed without saying whether the shard was written
  MemberMask repaired_ = 0;
  std::optional<WriteOutcome> outcome_;
};

}  // namespace millrace::storage::store
