#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "storage/store/hedge_budget.h"
#include "storage/wire/messages.h"

namespace millrace::storage::store {

/// A set of members of a group; bit i is the member with shard index i.
using MemberMask = std::uint32_t;

/// What a reader thinks of a member before it asks.
enum class Standing : std::uint8_t {
  kReady,
  kRebuilding,  ///< may lack the block: asked when the others do not suffice
  kProbation,   ///< has not been answering in time: likewise
  kDown,        ///< not asked for anything
};

/// What became of one shard of a read.
enum class ShardVerdict : std::uint8_t {
  kGood,     ///< verified: this key, this index, checksum
  kMissing,  ///< the member has no such shard
  kBad,      ///< damaged, short, of another key, index or layout
  kRefused,  ///< busy, overdue, no connection, ...: says nothing about the shard
};

/// Why a read found nothing. Closed set, for metrics.
enum class MissReason : std::uint8_t {
  kNone,
  kNotFound,       ///< the members say that there is no such block
  kTooFewMembers,  ///< the map has fewer than k that can be asked
  kTooFewShards,   ///< fewer than k good shards of one generation
  kDeadline,       ///< the caller's time was over
  kBusy,           ///< a queue of this process is full
  kNoMap,          ///< no map yet, or none as new as a node wants
  kOtherSize,      ///< the block is not of the size that the caller has room for
  kShutdown,       ///< this process is stopping
};
inline constexpr int kMissReasons = 9;
/// "none", "not_found", ...
const char* miss_reason_name(MissReason reason);

/// What to do after an event.
struct ReadStep {
  MemberMask ask = 0;     ///< send these ReadShard
  MemberMask repair = 0;  ///< send these RepairShard
  bool is_hedge = false;  ///< `ask` goes out because of time alone
};

/// The read of one block of a group: whom to ask, when to ask one more, when it has succeeded or
/// cannot any more. Pure. k + m = members.size() <= kMaxGroupShards.
///
///     12 ready: ask 11, another left out each time    11 ready: ask 11    10 ready: ask 10
///     an answer that is no good shard: ask one more at once
///     a hedge deadline passes: ask one more if the budget allows, or if what is still in time
///                              cannot add up to k
///     k good shards of one generation: hit            k impossible: miss
///
/// It outlives its end: members that were asked answer late, and a shard that turns out to be bad
/// then is repaired too.
class ReadPlan {
 public:
  /// `spare_shards`: so many more than k are asked for at once; 1 is the rule above, 0 asks for the
  /// next one only when an answer fails or is overdue.
  ReadPlan(int data_shards, std::vector<Standing> members, int spare_shards = 1);

  /// `rotation` says which member is left out; `probes` are asked on top, nobody waits for them.
  ReadStep start(std::uint64_t rotation, MemberMask probes);
  /// `generation` of a good shard. Each asked member answers once (CHECK).
  ReadStep on_reply(int member, ShardVerdict verdict, Generation generation);
  /// The hedge deadlines of these members have passed.
  ReadStep on_overdue(MemberMask members, HedgeBudget& budget);
  /// The read's own time is over.
  void on_deadline();

  bool is_finished() const { return is_hit_ || miss_ != MissReason::kNone; }
  bool is_hit() const { return is_hit_; }
  MissReason miss_reason() const { return miss_; }
  /// Of a hit: k members, and the generation of all their shards.
  MemberMask decode_from() const { return decode_from_; }
  Generation generation() const { return generation_; }

  /// Members that were asked and have not answered.
  MemberMask waiting() const { return waiting_; }
  MemberMask asked() const { return asked_; }
  /// Every member is up and answered well: nothing had to be made up for.
  bool is_degraded() const { return (failed_ | unready_) != 0; }

 private:
  ReadStep ask_more(int count);
  void judge();
  MemberMask askable(Standing standing) const;
  MemberMask unasked() const;
  /// Good shards that can be had from those that were asked and are not overdue.
  int in_time_count() const;
  /// Good shards of the generation that has most of them.
  int best_count(Generation& best) const;
  MemberMask good_of(Generation generation) const;

  const int data_shards_;
  const int spare_shards_;
  const std::vector<Standing> members_;
  MemberMask unready_ = 0;
  MemberMask asked_ = 0;
  MemberMask waiting_ = 0;
  MemberMask overdue_ = 0;  ///< of those waiting
  MemberMask probes_ = 0;
  MemberMask good_ = 0;
  MemberMask failed_ = 0;
  MemberMask missing_ = 0;     ///< of those failed: have no such shard
  MemberMask repairable_ = 0;  ///< missing or bad, and not reported yet
  std::array<Generation, kMaxGroupShards> generations_{};
  MemberMask decode_from_ = 0;
  Generation generation_ = 0;
  bool is_hit_ = false;
  MissReason miss_ = MissReason::kNone;
};

}  // namespace millrace::storage::store
