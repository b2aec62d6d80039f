#include "storage/store/read_plan.h"

#include <algorithm>
#include <bit>

#include "common/check.h"

namespace millrace::storage::store {
namespace {

MemberMask bit(int member) { return MemberMask{1} << member; }

}  // namespace

const char* miss_reason_name(MissReason reason) {
  switch (reason) {
    case MissReason::kNone:
      return "none";
    case MissReason::kNotFound:
      return "not_found";
    case MissReason::kTooFewMembers:
      return "too_few_members";
    case MissReason::kTooFewShards:
      return "too_few_shards";
    case MissReason::kDeadline:
      return "deadline";
    case MissReason::kBusy:
      return "busy";
    case MissReason::kNoMap:
      return "no_map";
    case MissReason::kOtherSize:
      return "other_size";
    case MissReason::kShutdown:
      return "shutdown";
  }
  return "unknown";
}

ReadPlan::ReadPlan(int data_shards, std::vector<Standing> members, int spare_shards)
    : data_shards_(data_shards), spare_shards_(spare_shards), members_(std::move(members)) {
  CHECK(spare_shards_ >= 0 && data_shards_ > 0 &&
        members_.size() >= static_cast<std::size_t>(data_shards_) &&
        members_.size() <= static_cast<std::size_t>(kMaxGroupShards));
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (members_[i] != Standing::kReady) unready_ |= bit(static_cast<int>(i));
}

MemberMask ReadPlan::askable(Standing standing) const {
  MemberMask mask = 0;
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (members_[i] == standing) mask |= bit(static_cast<int>(i));
  return mask & ~asked_;
}

MemberMask ReadPlan::unasked() const {
  return askable(Standing::kReady) | askable(Standing::kRebuilding) | askable(Standing::kProbation);
}

ReadStep ReadPlan::start(std::uint64_t rotation, MemberMask probes) {
  const MemberMask ready = askable(Standing::kReady);
  const int ready_count = std::popcount(ready);
  ReadStep step;
  // One more than needed, so that the slowest does not matter. Left out is another one each time:
  // else one node of a group would idle, and another serve parity alone.
  MemberMask chosen = ready;
  for (int excess = ready_count - (data_shards_ + spare_shards_); excess > 0; --excess) {
    auto position = static_cast<int>((rotation + static_cast<std::uint64_t>(excess)) %
                                     static_cast<std::uint64_t>(std::popcount(chosen)));
    MemberMask rest = chosen;
    while (position-- > 0) rest &= rest - 1;
    chosen &= ~(rest & (~rest + 1));
  }
  step.ask = chosen;
  asked_ |= chosen;
  waiting_ |= chosen;
  if (ready_count < data_shards_) step.ask |= ask_more(data_shards_ - ready_count).ask;
  probes_ = probes & unasked() & askable(Standing::kProbation);
  step.ask |= probes_;
  asked_ |= probes_;
  waiting_ |= probes_;
  judge();
  if (is_finished()) step.ask = asked_ = waiting_ = 0;
  return step;
}

ReadStep ReadPlan::ask_more(int count) {
  ReadStep step;
  for (const Standing standing : {Standing::kReady, Standing::kRebuilding, Standing::kProbation}) {
    for (MemberMask rest = askable(standing); rest != 0 && count > 0; rest &= rest - 1, --count)
      step.ask |= rest & (~rest + 1);
  }
  asked_ |= step.ask;
  waiting_ |= step.ask;
  return step;
}

ReadStep ReadPlan::on_reply(int member, ShardVerdict verdict, Generation generation) {
  const MemberMask self = bit(member);
  CHECK((waiting_ & self) != 0);
  waiting_ &= ~self;
  overdue_ &= ~self;
  ReadStep step;
  if (verdict == ShardVerdict::kGood) {
    good_ |= self;
    generations_[static_cast<std::size_t>(member)] = generation;
  } else {
    failed_ |= self;
    if (verdict == ShardVerdict::kMissing) missing_ |= self;
    // What is being rebuilt comes by itself; who refuses may have a good shard.
    const bool is_up = members_[static_cast<std::size_t>(member)] != Standing::kRebuilding;
    if (is_up && verdict != ShardVerdict::kRefused) repairable_ |= self;
  }
  const bool was_finished = is_finished();
  if (!was_finished) {
    judge();
    if (!is_finished()) {
      // One for one that failed; and whatever is lacking when a good shard is of a generation that
      // the others do not have.
      const bool has_failed = verdict != ShardVerdict::kGood && (probes_ & self) == 0;
      step = ask_more(std::max(has_failed ? 1 : 0, data_shards_ - in_time_count()));
    }
  }
  if (is_hit_) {
    // A shard of another generation than the one that k members have is left over from a write
    // that came to nothing.
    if (!was_finished) repairable_ |= good_ & ~good_of(generation_);
    if (was_finished && verdict == ShardVerdict::kGood && generation != generation_)
      repairable_ |= self;
    step.repair = repairable_;
    repairable_ = 0;
  }
  return step;
}

ReadStep ReadPlan::on_overdue(MemberMask members, HedgeBudget& budget) {
  overdue_ |= members & waiting_;
  ReadStep step;
  if (is_finished() || (members & waiting_ & ~probes_) == 0) return step;
  const int in_time = in_time_count();
  if (in_time < data_shards_) {
    // It cannot do without: nothing is withheld.
    step = ask_more(data_shards_ - in_time);
    if (step.ask != 0) budget.charge();
  } else if (unasked() != 0 && budget.take()) {
    step = ask_more(1);
  }
  step.is_hedge = step.ask != 0;
  return step;
}

void ReadPlan::on_deadline() {
  if (!is_finished()) miss_ = MissReason::kDeadline;
}

int ReadPlan::in_time_count() const {
  Generation best = 0;
  return best_count(best) + std::popcount(waiting_ & ~overdue_ & ~probes_);
}

int ReadPlan::best_count(Generation& best) const {
  int most = 0;
  for (MemberMask rest = good_; rest != 0; rest &= rest - 1) {
    const Generation generation = generations_[static_cast<std::size_t>(std::countr_zero(rest))];
    const int count = std::popcount(good_of(generation));
    if (count > most) {
      most = count;
      best = generation;
    }
  }
  return most;
}

MemberMask ReadPlan::good_of(Generation generation) const {
  MemberMask mask = 0;
  for (MemberMask rest = good_; rest != 0; rest &= rest - 1) {
    const int member = std::countr_zero(rest);
    if (generations_[static_cast<std::size_t>(member)] == generation) mask |= bit(member);
  }
  return mask;
}

void ReadPlan::judge() {
  Generation best = 0;
  const int count = best_count(best);
  if (count >= data_shards_) {
    is_hit_ = true;
    generation_ = best;
    decode_from_ = good_of(best);
    return;
  }
  const int possible = std::popcount(waiting_) + std::popcount(unasked());
  if (count + possible >= data_shards_) return;
  if (std::popcount(good_ | failed_) == 0) {
    miss_ = MissReason::kTooFewMembers;
  } else {
    miss_ = good_ == 0 && failed_ == missing_ ? MissReason::kNotFound : MissReason::kTooFewShards;
  }
}

}  // namespace millrace::storage::store
