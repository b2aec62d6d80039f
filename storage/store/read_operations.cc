#include "storage/store/read_operations.h"

#include <algorithm>
#include <bit>

#include "common/check.h"
#include "storage/store/stripe.h"

namespace millrace::storage::store {
namespace {

/// The subject of deadlines of reads that wait, for room or for a map. No attempt has this id.
constexpr std::uint64_t kNotBegun = 0;

std::size_t index_of(int member) { return static_cast<std::size_t>(member); }

Standing standing_of(const StorageMap& map, const Member& member, const NodeScores& scores) {
  if (member.state == MemberState::kDown) return Standing::kDown;
  if (scores.is_on_probation(StoreContext::node_of(map, member.target_id)))
    return Standing::kProbation;
  return member.state == MemberState::kRebuilding ? Standing::kRebuilding : Standing::kReady;
}

}  // namespace

void ReadOperations::start(const StartRead& read, TimePoint now) {
  ++context_.counters.reads;
  if (context_.map == nullptr || context_.map->groups.empty())
    return miss(read, MissReason::kNoMap);
  if (waiting_.empty() && has_room(*context_.map)) return begin(read, 0, now);
  if (waiting_.size() >= context_.settings.max_waiting_reads) return miss(read, MissReason::kBusy);
  context_.set_timer(read.deadline, TimerKind::kReadDeadline, kNotBegun);
  waiting_.push_back(read);
  context_.counters.waiting_reads = waiting_.size();
}

bool ReadOperations::has_room(const StorageMap& map) const {
  const std::size_t bytes = sealed_shard_bytes(map.block_bytes, map.data_shards) *
                            static_cast<std::size_t>(map.data_shards + 1);
  const std::uint64_t used = context_.counters.read_bytes_in_flight;
  // One read always has room, however small the window.
  return used == 0 || used + bytes <= context_.settings.read_window_bytes;
}

void ReadOperations::admit_waiting(TimePoint now) {
  while (!waiting_.empty() && has_room(*context_.map)) {
    const StartRead read = waiting_.front();
    waiting_.pop_front();
    begin(read, 0, now);
  }
  context_.counters.waiting_reads = waiting_.size();
}

void ReadOperations::begin(const StartRead& read, int retries, TimePoint now) {
  const StorageMap& map = *context_.map;
  const Group& group = group_of(map, read.key);
  std::vector<Standing> standings;
  MemberMask probes = 0;
  standings.reserve(group.members.size());
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    standings.push_back(standing_of(map, group.members[i], context_.scores));
    if (standings.back() == Standing::kProbation &&
        context_.scores.take_probe(StoreContext::node_of(map, group.members[i].target_id), now))
      probes |= MemberMask{1} << i;
  }
  const std::uint64_t id = context_.next_id();
  const std::size_t n = group.members.size();
  Attempt& attempt =
      attempts_
          .emplace(id, Attempt{.read = read,
                               .map = context_.map,
                               .codec = context_.codec,
                               .group = &group,
                               .plan = ReadPlan(map.data_shards, std::move(standings),
                                                context_.settings.spare_shards),
                               .retries = retries,
                               .shard_bytes = sealed_shard_bytes(map.block_bytes, map.data_shards),
                               .shards = std::vector<std::vector<std::byte>>(n),
                               .headers = std::vector<ShardHeader>(n),
                               .overdue_at = std::vector<TimePoint>(n)})
          .first->second;
  context_.budget.on_read();
  context_.counters.probes += static_cast<std::uint64_t>(std::popcount(probes));
  const ReadStep step = attempt.plan.start(rotation_++, probes);
  act(id, attempt, step, now);
  if (!attempt.is_over) context_.set_timer(attempt.read.deadline, TimerKind::kReadDeadline, id);
  arm_overdue(id, attempt);
  erase_if_settled(attempts_.find(id));
}

void ReadOperations::ask(std::uint64_t attempt_id, Attempt& attempt, MemberMask members,
                         TimePoint now) {
  for (; members != 0; members &= members - 1) {
    const int member = std::countr_zero(members);
    const std::string& target = attempt.group->members[index_of(member)].target_id;
    const auto patience =
        context_.scores.hedge_deadline(StoreContext::node_of(*attempt.map, target));
    attempt.overdue_at[index_of(member)] = now + patience;
    context_.counters.read_bytes_in_flight += attempt.shard_bytes;
    context_.send(*attempt.map, target, ReadShard{attempt.read.key}, attempt.read.deadline, now,
                  {.errand = Errand::kRead, .attempt = attempt_id, .member = member});
  }
}

void ReadOperations::arm_overdue(std::uint64_t attempt_id, const Attempt& attempt) {
  const MemberMask open = attempt.plan.waiting() & ~attempt.missed;
  if (open == 0) return;
  TimePoint earliest = TimePoint::max();
  for (MemberMask rest = open; rest != 0; rest &= rest - 1)
    earliest = std::min(earliest, attempt.overdue_at[index_of(std::countr_zero(rest))]);
  context_.set_timer(earliest, TimerKind::kReadOverdue, attempt_id);
}

void ReadOperations::on_answer(const Outstanding& note, ShardReply reply, TimePoint now) {
  const auto found = attempts_.find(note.attempt);
  CHECK(found != attempts_.end(), "an attempt lives until its last answer");
  Attempt& attempt = found->second;
  const MemberMask self = MemberMask{1} << note.member;
  context_.counters.read_bytes_in_flight -= attempt.shard_bytes;
  if (attempt.is_over) context_.counters.late_bytes_in_flight -= attempt.shard_bytes;
  ++context_.counters.shard_results[static_cast<std::size_t>(reply.result)];
  const bool was_missed = (attempt.missed & self) != 0;
  if (reply.result != ShardResult::kUnavailable) {
    context_.scores.on_answer(note.node_id, now - note.sent_at, was_missed);
  } else if (!was_missed) {
    context_.scores.on_miss(note.node_id, now);
  }
  const bool is_parked = reply.result == ShardResult::kStaleMap && !attempt.is_over &&
                         attempt.retries < kMaxMapRetries &&
                         parked_.size() < context_.settings.max_waiting_reads;
  if (is_parked) {
    // Groups may have changed: another try with the newer map, which has been asked for.
    parked_.push_back(
        {.read = attempt.read, .epoch = reply.map_epoch, .retries = attempt.retries + 1});
    context_.set_timer(attempt.read.deadline, TimerKind::kReadDeadline, kNotBegun);
    attempt.plan.on_deadline();
  }
  const ShardVerdict verdict = judge(attempt, note.member, reply);
  const Generation generation = attempt.headers[index_of(note.member)].generation;
  const ReadStep step = attempt.plan.on_reply(note.member, verdict, generation);
  if (is_parked) end(attempt);
  act(found->first, attempt, step, now);
  erase_if_settled(found);
  // The newer map may have come while the request was on its way: nothing else would tell.
  if (is_parked) begin_parked(now);
  admit_waiting(now);
}

ShardVerdict ReadOperations::judge(Attempt& attempt, int member, ShardReply& reply) {
  switch (reply.result) {
    case ShardResult::kOk:
      break;
    case ShardResult::kNotFound:
      return ShardVerdict::kMissing;
    case ShardResult::kBadShard:
      ++context_.counters.shard_defects[static_cast<std::size_t>(reply.defect)];
      return ShardVerdict::kBad;
    default:
      return ShardVerdict::kRefused;
  }
  ShardHeader& header = attempt.headers[index_of(member)];
  ShardDefect defect =
      verify_shard(reply.shard, attempt.read.key, static_cast<std::uint8_t>(member), 0, header);
  if (defect == ShardDefect::kNone) {
    const bool fits = header.data_shards == attempt.map->data_shards &&
                      header.parity_shards == attempt.map->parity_shards &&
                      header.block_bytes <= attempt.map->block_bytes;
    // Shards of one generation come from one writer, so that they agree on the size of the block.
    const bool agrees =
        std::none_of(attempt.headers.begin(), attempt.headers.end(), [&](const ShardHeader& other) {
          return other.generation == header.generation && other.block_bytes != header.block_bytes;
        });
    if (!fits || !agrees) defect = ShardDefect::kLayout;
  }
  if (defect != ShardDefect::kNone) {
    ++context_.counters.shard_defects[static_cast<std::size_t>(defect)];
    header = {};
    return ShardVerdict::kBad;
  }
  if (!attempt.is_over) attempt.shards[index_of(member)] = std::move(reply.shard);
  return ShardVerdict::kGood;
}

void ReadOperations::act(std::uint64_t attempt_id, Attempt& attempt, const ReadStep& step,
                         TimePoint now) {
  if (step.is_hedge && !attempt.was_hedged) {
    attempt.was_hedged = true;
    ++context_.counters.hedged_reads;
  }
  if (step.ask != 0) {
    ask(attempt_id, attempt, step.ask, now);
    // Who is asked later may be due earlier than the timer that is set.
    if (attempt.plan.asked() != step.ask) arm_overdue(attempt_id, attempt);
  }
  context_.send_repairs(*attempt.map, *attempt.group, step.repair, attempt.read.key, now);
  if (attempt.plan.is_finished() && !attempt.is_over) finish(attempt);
}

void ReadOperations::finish(Attempt& attempt) {
  if (attempt.plan.is_hit()) {
    finish_hit(attempt);
  } else {
    miss(attempt.read, attempt.plan.miss_reason());
  }
  end(attempt);
}

void ReadOperations::finish_hit(Attempt& attempt) {
  const MemberMask from = attempt.plan.decode_from();
  const ShardHeader& header = attempt.headers[index_of(std::countr_zero(from))];
  ReadResult result{
      .generation = header.generation, .depth = header.depth, .ttl = header.ttl, .block = {}};
  std::span<std::byte> block = attempt.read.landing;
  if (block.empty()) {
    result.block.resize(header.block_bytes);
    block = result.block;
  } else if (block.size() != header.block_bytes) {
    return miss(attempt.read, MissReason::kOtherSize);
  }
  open_block(*attempt.codec, attempt.shards, from, block);
  ++context_.counters.hits;
  context_.counters.read_bytes += block.size();
  if (attempt.plan.is_degraded()) ++context_.counters.degraded_reads;
  context_.actions.reads.push_back(FinishRead{attempt.read.id, std::move(result)});
}

void ReadOperations::miss(const StartRead& read, MissReason reason) {
  ++context_.counters.misses[static_cast<std::size_t>(reason)];
  context_.actions.reads.push_back(FinishRead{read.id, {.miss = reason, .block = {}}});
}

/// Lets go of the caller and of the shards; what is still on its way is late from now on.
void ReadOperations::end(Attempt& attempt) {
  attempt.is_over = true;
  attempt.read.landing = {};
  for (std::vector<std::byte>& shard : attempt.shards) shard = {};
  context_.counters.late_bytes_in_flight +=
      attempt.shard_bytes * static_cast<std::size_t>(std::popcount(attempt.plan.waiting()));
}

void ReadOperations::erase_if_settled(Attempts::iterator found) {
  if (found != attempts_.end() && found->second.is_over && found->second.plan.waiting() == 0)
    attempts_.erase(found);
}

void ReadOperations::on_overdue(std::uint64_t attempt_id, TimePoint now) {
  const auto found = attempts_.find(attempt_id);
  if (found == attempts_.end()) return;
  Attempt& attempt = found->second;
  MemberMask newly = 0;
  for (MemberMask rest = attempt.plan.waiting() & ~attempt.missed; rest != 0; rest &= rest - 1) {
    const int member = std::countr_zero(rest);
    if (attempt.overdue_at[index_of(member)] > now) continue;
    newly |= MemberMask{1} << member;
    ++context_.counters.missed_deadlines;
    context_.scores.on_miss(
        StoreContext::node_of(*attempt.map, attempt.group->members[index_of(member)].target_id),
        now);
  }
  if (newly == 0) return arm_overdue(attempt_id, attempt);  // whoever was due first has answered
  attempt.missed |= newly;
  const ReadStep step = attempt.plan.on_overdue(newly, context_.budget);
  act(attempt_id, attempt, step, now);
  arm_overdue(attempt_id, attempt);
}

void ReadOperations::on_deadline(std::uint64_t attempt_id, TimePoint now) {
  if (attempt_id == kNotBegun) return expire_unbegun(now);
  const auto found = attempts_.find(attempt_id);
  if (found == attempts_.end() || found->second.is_over) return;
  found->second.plan.on_deadline();
  act(attempt_id, found->second, {}, now);
  erase_if_settled(found);
}

void ReadOperations::expire_unbegun(TimePoint now) {
  std::erase_if(waiting_, [&](const StartRead& read) {
    if (read.deadline > now) return false;
    miss(read, MissReason::kBusy);
    return true;
  });
  context_.counters.waiting_reads = waiting_.size();
  std::erase_if(parked_, [&](const Parked& parked) {
    if (parked.read.deadline > now) return false;
    miss(parked.read, MissReason::kNoMap);
    return true;
  });
}

void ReadOperations::on_map(TimePoint now) {
  begin_parked(now);
  admit_waiting(now);
}

void ReadOperations::begin_parked(TimePoint now) {
  std::vector<Parked> ready;
  std::erase_if(parked_, [&](const Parked& parked) {
    if (parked.epoch > context_.map->epoch) return false;
    ready.push_back(parked);
    return true;
  });
  for (const Parked& parked : ready) begin(parked.read, parked.retries, now);
}

void ReadOperations::stop() {
  for (auto& [id, attempt] : attempts_) {
    if (attempt.is_over) continue;
    attempt.plan.on_deadline();
    miss(attempt.read, MissReason::kShutdown);
    end(attempt);
  }
  std::erase_if(attempts_, [](const auto& entry) { return entry.second.plan.waiting() == 0; });
  for (const StartRead& read : waiting_) miss(read, MissReason::kShutdown);
  for (const Parked& parked : parked_) miss(parked.read, MissReason::kShutdown);
  waiting_.clear();
  parked_.clear();
  context_.counters.waiting_reads = 0;
}

}  // namespace millrace::storage::store
