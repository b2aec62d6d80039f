#include "storage/store/write_plan.h"

#include <algorithm>
#include <bit>

#include "common/check.h"

namespace millrace::storage::store {
namespace {

/// A rival that gives up does so within a round trip; the fifth try comes 155 ms after the first.
constexpr int kMaxAttempts = 6;
constexpr std::chrono::milliseconds kFirstBackoff{5};

MemberMask bit(int member) { return MemberMask{1} << member; }

/// The node may have taken the shard although it, or the way to it, says otherwise.
bool is_uncertain(ShardResult result) {
  return result == ShardResult::kUnavailable || result == ShardResult::kOverdue ||
         result == ShardResult::kIoError;
}

bool is_worth_repeating(ShardResult result) {
  return result == ShardResult::kBusy || result == ShardResult::kOverdue ||
         result == ShardResult::kUnavailable;
}

}  // namespace

const char* write_outcome_name(WriteOutcome outcome) {
  switch (outcome) {
    case WriteOutcome::kStored:
      return "stored";
    case WriteOutcome::kAlreadyThere:
      return "already_there";
    case WriteOutcome::kLostRace:
      return "lost_race";
    case WriteOutcome::kTooFewMembers:
      return "too_few_members";
    case WriteOutcome::kTooFewShards:
      return "too_few_shards";
    case WriteOutcome::kUnconfirmed:
      return "unconfirmed";
    case WriteOutcome::kDeadline:
      return "deadline";
    case WriteOutcome::kBusy:
      return "busy";
    case WriteOutcome::kNoMap:
      return "no_map";
    case WriteOutcome::kInvalid:
      return "invalid";
    case WriteOutcome::kShutdown:
      return "shutdown";
  }
  return "unknown";
}

int write_quorum(const Group& group, int data_shards, int parity_shards) {
  const auto down = std::count_if(group.members.begin(), group.members.end(),
                                  [](const Member& m) { return m.state == MemberState::kDown; });
  if (down >= parity_shards) return data_shards;
  return std::max(data_shards, data_shards + parity_shards - 1);
}

WritePlan::WritePlan(const Group& group, int data_shards, int parity_shards, Generation generation)
    : quorum_(write_quorum(group, data_shards, parity_shards)),
      generation_(generation),
      members_(static_cast<int>(group.members.size())) {
  CHECK(members_ == data_shards + parity_shards && members_ <= kMaxGroupShards && generation != 0);
  for (std::size_t i = 0; i < group.members.size(); ++i)
    if (group.members[i].state == MemberState::kDown) progress_[i].state = State::kDown;
}

WriteStep WritePlan::start() {
  if (members_ - count(State::kDown) < quorum_) {
    for (int i = 0; i < members_; ++i) progress_[static_cast<std::size_t>(i)].state = State::kDown;
    decide(WriteOutcome::kTooFewMembers);
    return {};
  }
  for (Progress& progress : progress_) progress.attempts = 1;
  WriteStep step;
  step.write = in(State::kWriting);
  return step;
}

WriteStep WritePlan::on_reply(int member, ShardResult result, Generation theirs, bool is_published,
                              TimePoint now) {
  const State state = progress_[static_cast<std::size_t>(member)].state;
  CHECK(state == State::kWriting || state == State::kPublishing);
  if (state == State::kWriting) {
    on_write_reply(member, result, theirs, is_published, now);
  } else {
    on_publish_reply(member, result, now);
  }
  return judge();
}

void WritePlan::on_write_reply(int member, ShardResult result, Generation theirs, bool is_published,
                               TimePoint now) {
  Progress& progress = progress_[static_cast<std::size_t>(member)];
  if (result == ShardResult::kOk) {
    progress.state = State::kStored;
    return;
  }
  if (result == ShardResult::kExists && theirs == generation_) {
    progress.state = is_published ? State::kPublished : State::kStored;
    return;
  }
  progress.state = State::kFailed;
  if (is_uncertain(result)) uncertain_ |= bit(member);
  if (result != ShardResult::kExists) return;
  if (is_published) {
    saw_published_ = true;
    return;
  }
  saw_pending_ = true;
  // With a quorum of ours, the other writer cannot have one: nothing to wait for or to give up.
  if (is_publishing_ || outcome_) return;
  if (generation_ < theirs) {
    has_lower_ours_ = true;
  } else {
    retry_or_fail(progress, State::kWriteAgain, now);
  }
}

void WritePlan::on_publish_reply(int member, ShardResult result, TimePoint now) {
  Progress& progress = progress_[static_cast<std::size_t>(member)];
  if (result == ShardResult::kOk) {
    progress.state = State::kPublished;
    return;
  }
  progress.state = State::kFailed;
  if (is_worth_repeating(result) && outcome_ != WriteOutcome::kShutdown)
    retry_or_fail(progress, State::kPublishAgain, now);
}

void WritePlan::retry_or_fail(Progress& progress, State again, TimePoint now) {
  if (progress.attempts >= kMaxAttempts) {
    progress.state = State::kFailed;
    return;
  }
  progress.state = again;
  progress.retry_at = now + kFirstBackoff * (1 << (progress.attempts - 1));
  ++progress.attempts;
}

WriteStep WritePlan::on_timer(TimePoint now) {
  WriteStep step;
  for (int i = 0; i < members_; ++i) {
    Progress& progress = progress_[static_cast<std::size_t>(i)];
    if (progress.state == State::kWriteAgain && progress.retry_at <= now) {
      progress.state = State::kWriting;
      step.write |= bit(i);
    } else if (progress.state == State::kPublishAgain && progress.retry_at <= now) {
      progress.state = State::kPublishing;
      step.publish |= bit(i);
    }
  }
  return step;
}

std::optional<TimePoint> WritePlan::next_retry() const {
  std::optional<TimePoint> earliest;
  for (const Progress& progress : progress_) {
    if (progress.state != State::kWriteAgain && progress.state != State::kPublishAgain) continue;
    if (!earliest || progress.retry_at < *earliest) earliest = progress.retry_at;
  }
  return earliest;
}

WriteStep WritePlan::judge() {
  WriteStep step;
  const int on_the_way = count(State::kWriting) + count(State::kWriteAgain);
  if (!outcome_ && !is_publishing_) {
    const int stored = count(State::kStored) + count(State::kPublished);
    if (stored >= quorum_) {
      is_publishing_ = true;
      for (Progress& progress : progress_) progress.attempts = 1;
    } else if (has_lower_ours_) {
      decide(WriteOutcome::kLostRace);
    } else if (stored + on_the_way < quorum_) {
      decide(saw_published_ ? WriteOutcome::kAlreadyThere
             : saw_pending_ ? WriteOutcome::kLostRace
                            : WriteOutcome::kTooFewShards);
    }
  }
  if (is_aborted_) {
    // What comes late goes as well.
    step.drop = in(State::kStored) | uncertain_;
    uncertain_ = 0;
    for (Progress& progress : progress_)
      if (progress.state == State::kStored || progress.state == State::kWriteAgain)
        progress.state = State::kFailed;
    return step;
  }
  if (!is_publishing_) return step;
  for (int i = 0; i < members_; ++i) {
    Progress& progress = progress_[static_cast<std::size_t>(i)];
    if (progress.state != State::kStored) continue;
    progress.state = State::kPublishing;
    step.publish |= bit(i);
  }
  if (!outcome_) {
    const int published = count(State::kPublished);
    const int possible = count(State::kPublishing) + count(State::kPublishAgain) +
                         count(State::kWriting) + count(State::kWriteAgain);
    if (published >= quorum_) {
      outcome_ = WriteOutcome::kStored;
    } else if (published + possible < quorum_) {
      outcome_ = WriteOutcome::kUnconfirmed;
    }
  }
  if (outcome_ == WriteOutcome::kStored) {
    step.repair = in(State::kFailed) & ~repaired_;
    repaired_ |= step.repair;
  }
  return step;
}

void WritePlan::decide(WriteOutcome outcome) {
  outcome_ = outcome;
  is_aborted_ = true;
}

WriteStep WritePlan::on_deadline() {
  if (!outcome_) {
    if (!is_publishing_) {
      decide(WriteOutcome::kDeadline);
      return judge();
    }
    outcome_ = WriteOutcome::kUnconfirmed;
  }
  // No more retries: what has not answered by now is repaired or, should it answer yet, published.
  for (Progress& progress : progress_)
    if (progress.state == State::kWriteAgain || progress.state == State::kPublishAgain)
      progress.state = State::kFailed;
  WriteStep step = judge();
  if (outcome_ == WriteOutcome::kStored) {
    const MemberMask late = waiting() & ~repaired_ & ~step.publish;
    step.repair |= late;
    repaired_ |= late;
  }
  return step;
}

WriteStep WritePlan::abandon(WriteOutcome outcome) {
  if (outcome_) return {};
  if (is_publishing_) {
    outcome_ = WriteOutcome::kUnconfirmed;
    return judge();
  }
  decide(outcome);
  return judge();
}

bool WritePlan::is_settled() const {
  return outcome_.has_value() && waiting() == 0 && in(State::kWriteAgain) == 0 &&
         in(State::kPublishAgain) == 0;
}

MemberMask WritePlan::in(State state) const {
  MemberMask mask = 0;
  for (int i = 0; i < members_; ++i)
    if (progress_[static_cast<std::size_t>(i)].state == state) mask |= bit(i);
  return mask;
}

int WritePlan::count(State state) const { return std::popcount(in(state)); }

}  // namespace millrace::storage::store
