#include "storage/store/write_operations.h"

#include <algorithm>
#include <bit>

#include "common/check.h"
#include "storage/store/stripe.h"

namespace millrace::storage::store {
namespace {

/// A write that is over may still be settling: answers to what it has sent get so much time.
constexpr std::chrono::seconds kSettleTime{10};

/// The subject of deadlines of writes that wait for a map. No attempt has this id.
constexpr std::uint64_t kNotBegun = 0;
/// Writes that wait for a map, outside of the window; further ones fail.
constexpr std::size_t kMaxParked = 256;

/// The block, and as much again and more in shards.
std::size_t window_bytes_of(const StorageMap& map, std::size_t block_bytes) {
  return block_bytes + sealed_shard_bytes(block_bytes, map.data_shards) *
                           static_cast<std::size_t>(map.group_shards());
}

}  // namespace

void WriteOperations::start(StartWrite write, TimePoint now) {
  if (context_.map == nullptr || context_.map->groups.empty())
    return report(write.id, WriteOutcome::kNoMap);
  if (write.block.empty() || write.block.size() > context_.map->block_bytes)
    return report(write.id, WriteOutcome::kInvalid);
  const std::size_t bytes = window_bytes_of(*context_.map, write.block.size());
  const std::uint64_t used = context_.counters.write_bytes_in_flight;
  // One write always has room, however small the window.
  if (used != 0 && used + bytes > context_.settings.write_window_bytes)
    return report(write.id, WriteOutcome::kBusy);
  begin(std::move(write), 0, now);
}

void WriteOperations::begin(StartWrite write, int retries, TimePoint now) {
  const StorageMap& map = *context_.map;
  const Group& group = group_of(map, write.key);
  Generation generation = 0;
  while (generation == 0) generation = context_.random();
  const std::uint64_t id = context_.next_id();
  const std::size_t bytes = window_bytes_of(map, write.block.size());
  const auto found =
      attempts_
          .emplace(id,
                   Attempt{.write = std::move(write),
                           .map = context_.map,
                           .codec = context_.codec,
                           .group = &group,
                           .plan = WritePlan(group, map.data_shards, map.parity_shards, generation),
                           .retries = retries,
                           .window_bytes = bytes})
          .first;
  context_.counters.write_bytes_in_flight += bytes;
  Attempt& attempt = found->second;
  act(id, attempt, attempt.plan.start(), now);
  context_.set_timer(attempt.write.deadline, TimerKind::kWriteDeadline, id);
  erase_if_settled(found);
}

void WriteOperations::act(std::uint64_t attempt_id, Attempt& attempt, const WriteStep& step,
                          TimePoint now) {
  const BlockKey& key = attempt.write.key;
  const Generation generation = attempt.plan.generation();
  if (step.write != 0) send_shards(attempt_id, attempt, step.write, now);
  for (MemberMask rest = step.publish; rest != 0; rest &= rest - 1) {
    const int member = std::countr_zero(rest);
    // A publication is wanted however late it is: the block is durable.
    context_.send(*attempt.map, attempt.group->members[static_cast<std::size_t>(member)].target_id,
                  PublishShard{key, generation},
                  std::max(attempt.write.deadline, now + kSettleTime), now,
                  {.errand = Errand::kWrite, .attempt = attempt_id, .member = member});
  }
  for (MemberMask rest = step.drop; rest != 0; rest &= rest - 1) {
    const auto member = static_cast<std::size_t>(std::countr_zero(rest));
    context_.send_errand(*attempt.map, attempt.group->members[member].target_id,
                         DropShard{key, generation}, now);
  }
  context_.send_repairs(*attempt.map, *attempt.group, step.repair, key, now);
  if (const auto retry = attempt.plan.next_retry())
    context_.set_timer(*retry, TimerKind::kWriteRetry, attempt_id);
  if (!attempt.is_reported && attempt.plan.outcome()) {
    attempt.is_reported = true;
    if (*attempt.plan.outcome() == WriteOutcome::kStored)
      context_.counters.written_bytes += attempt.write.block.size();
    report(attempt.write.id, *attempt.plan.outcome());
  }
}

/// Sealed again for a retry, which is rare, so that nobody keeps shards in case of one.
void WriteOperations::send_shards(std::uint64_t attempt_id, const Attempt& attempt,
                                  MemberMask members, TimePoint now) {
  const ShardHeader header{.key = attempt.write.key,
                           .generation = attempt.plan.generation(),
                           .ttl = attempt.write.ttl,
                           .depth = attempt.write.depth};
  std::vector<std::vector<std::byte>> shards =
      seal_block(*attempt.codec, header, attempt.write.block);
  for (; members != 0; members &= members - 1) {
    const int member = std::countr_zero(members);
    const auto index = static_cast<std::size_t>(member);
    context_.send(*attempt.map, attempt.group->members[index].target_id,
                  WriteShard{std::move(shards[index])}, attempt.write.deadline, now,
                  {.errand = Errand::kWrite, .attempt = attempt_id, .member = member});
  }
}

void WriteOperations::on_answer(const Outstanding& note, const ShardReply& reply, TimePoint now) {
  const auto found = attempts_.find(note.attempt);
  CHECK(found != attempts_.end(), "an attempt lives until its last answer");
  Attempt& attempt = found->second;
  if (reply.result == ShardResult::kUnavailable) context_.scores.on_miss(note.node_id, now);
  WriteStep step;
  const bool may_retry = !attempt.is_reported && attempt.retries < kMaxMapRetries &&
                         !attempt.plan.outcome() && parked_.size() < kMaxParked;
  if (reply.result == ShardResult::kStaleMap && may_retry) {
    // Groups may have changed: another try with the newer map, which has been asked for.
    step = attempt.plan.abandon(WriteOutcome::kNoMap);
    if (attempt.plan.outcome() == WriteOutcome::kNoMap) park(attempt, reply.map_epoch);
  }
  const WriteStep answered =
      attempt.plan.on_reply(note.member, reply.result, reply.generation, reply.is_published, now);
  step.write |= answered.write;
  step.publish |= answered.publish;
  step.drop |= answered.drop;
  step.repair |= answered.repair;
  act(found->first, attempt, step, now);
  erase_if_settled(found);
  // The newer map may have come while the request was on its way: nothing else would tell.
  if (reply.result == ShardResult::kStaleMap) on_map(now);
}

void WriteOperations::park(Attempt& attempt, std::uint64_t epoch) {
  attempt.is_reported = true;
  context_.set_timer(attempt.write.deadline, TimerKind::kWriteDeadline, kNotBegun);
  parked_.push_back({.write = {.id = attempt.write.id,
                               .key = attempt.write.key,
                               .block = std::move(attempt.write.block),
                               .depth = attempt.write.depth,
                               .ttl = attempt.write.ttl,
                               .deadline = attempt.write.deadline},
                     .epoch = epoch,
                     .retries = attempt.retries + 1});
}

void WriteOperations::on_deadline(std::uint64_t attempt_id, TimePoint now) {
  if (const auto found = attempts_.find(attempt_id); found != attempts_.end()) {
    act(found->first, found->second, found->second.plan.on_deadline(), now);
    erase_if_settled(found);
  }
  std::erase_if(parked_, [&](const Parked& parked) {
    if (parked.write.deadline > now) return false;
    report(parked.write.id, WriteOutcome::kNoMap);
    return true;
  });
}

void WriteOperations::on_retry(std::uint64_t attempt_id, TimePoint now) {
  const auto found = attempts_.find(attempt_id);
  if (found == attempts_.end()) return;
  act(found->first, found->second, found->second.plan.on_timer(now), now);
  erase_if_settled(found);
}

void WriteOperations::on_map(TimePoint now) {
  std::vector<Parked> ready;
  std::erase_if(parked_, [&](Parked& parked) {
    if (parked.epoch > context_.map->epoch) return false;
    ready.push_back(std::move(parked));
    return true;
  });
  for (Parked& parked : ready) {
    if (parked.write.block.size() > context_.map->block_bytes) {
      report(parked.write.id, WriteOutcome::kInvalid);
    } else {
      begin(std::move(parked.write), parked.retries, now);
    }
  }
}

void WriteOperations::stop(TimePoint now) {
  for (auto found = attempts_.begin(); found != attempts_.end();) {
    const auto next = std::next(found);
    act(found->first, found->second, found->second.plan.abandon(WriteOutcome::kShutdown), now);
    erase_if_settled(found);
    found = next;
  }
  for (const Parked& parked : parked_) report(parked.write.id, WriteOutcome::kShutdown);
  parked_.clear();
}

void WriteOperations::report(OperationId id, WriteOutcome outcome) {
  ++context_.counters.writes[static_cast<std::size_t>(outcome)];
  context_.actions.writes.push_back(FinishWrite{id, outcome});
}

void WriteOperations::erase_if_settled(Attempts::iterator found) {
  if (!found->second.plan.is_settled()) return;
  context_.counters.write_bytes_in_flight -= found->second.window_bytes;
  attempts_.erase(found);
}

}  // namespace millrace::storage::store
