#include "dataplane/scheduler/scheduler.h"

#include <algorithm>

#include "common/check.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::dataplane::scheduler {

absl::StatusOr<Scheduler> Scheduler::create(const SchedulerLimits& limits) {
  if (limits.max_step_rows < 1 || limits.max_sequences < 1 || limits.kv_blocks < 1 ||
      limits.max_waiting < 1 || limits.max_waiting_tokens < 1) {
    return absl::InvalidArgumentError("every limit of a worker must be at least 1");
  }
  if (limits.max_sequences > limits.max_step_rows) {
    return absl::InvalidArgumentError(
        str_cat("a step of ", limits.max_step_rows, " rows cannot hold one row of each of ",
                limits.max_sequences, " sequences: raise the step rows or lower the sequences"));
  }
  RETURN_IF_ERROR(check(PrefillStepLimits{.budget_ns = limits.step_budget_ns,
                                          .share_cap = limits.share_cap,
                                          .max_rows = limits.max_step_rows}));
  return Scheduler(limits);
}

absl::Status Scheduler::enqueue(const NewRequest& request) {
  CHECK(!requests_.contains(request.id), "a request id is used once");
  if (request.capacity_tokens < 1 || (request.work == Work::kPrefill && request.rows < 1)) {
    return absl::InvalidArgumentError("a request needs at least one token");
  }
  const int blocks = blocks_for(request.capacity_tokens);
  if (blocks > limits_.kv_blocks) {
    return absl::InvalidArgumentError(str_cat("the request may need ", blocks,
                                              " KV blocks; this worker has ", limits_.kv_blocks));
  }
  if (waiting_.size() >= static_cast<std::size_t>(limits_.max_waiting)) {
    return absl::ResourceExhaustedError(
        str_cat("the waiting queue is full (", limits_.max_waiting, " requests)"));
  }
  // A request longer than the bound may still wait, alone.
  if (!waiting_.empty() && waiting_rows_ + request.rows > limits_.max_waiting_tokens) {
    return absl::ResourceExhaustedError(
        str_cat("the waiting queue is full (", waiting_rows_, " tokens)"));
  }
  requests_.emplace(request.id, Entry{.request = request, .blocks = blocks});
  waiting_.push_back(request.id);
  waiting_rows_ += request.rows;
  return absl::OkStatus();
}

Turn Scheduler::begin_turn(TimePoint now) {
  Turn turn;
  for (const auto& [id, entry] : requests_) {
    if (entry.request.deadline <= now) turn.expired.push_back(id);
  }
  for (const RequestId id : turn.expired) remove(id);

  for (auto place = waiting_.begin();
       place != waiting_.end() &&
       admitted_.size() < static_cast<std::size_t>(limits_.max_sequences);) {
    Entry& next = entry(*place);
    if (next.request.awaits_kv) {
      ++place;
      continue;
    }
    if (blocks_used_ + next.blocks > limits_.kv_blocks) break;
    place = waiting_.erase(place);
    waiting_rows_ -= next.request.rows - next.rows_done;
    blocks_used_ += next.blocks;
    next.state = next.request.work == Work::kPrefill ? State::kPrefilling : State::kArriving;
    admitted_.push_back(next.request.id);
    turn.admitted.push_back(next.request.id);
  }
  return turn;
}

void Scheduler::begin_at(RequestId id, int first_row) {
  Entry& waiting = entry(id);
  CHECK(waiting.state == State::kWaiting && waiting.request.awaits_kv);
  CHECK(first_row >= 0 && first_row < waiting.request.rows);
  waiting.request.awaits_kv = false;
  waiting.rows_done = first_row;
  waiting_rows_ -= first_row;
}

void Scheduler::restart(RequestId id) {
  Entry& prefill = entry(id);
  CHECK(prefill.state == State::kPrefilling || prefill.state == State::kOnHold);
  prefill.state = State::kPrefilling;
  prefill.rows_done = 0;
}

void Scheduler::start_decoding(RequestId id) {
  Entry& arrived = entry(id);
  CHECK(arrived.state == State::kArriving);
  arrived.state = State::kDecoding;
}

std::vector<StepSlice> Scheduler::plan_step() const {
  std::vector<StepSlice> slices;
  int rows_left = limits_.max_step_rows;
  for (const RequestId id : admitted_) {
    if (requests_.at(id).state != State::kDecoding) continue;
    slices.push_back({.id = id, .work = Work::kDecode, .is_last = true});
    --rows_left;
  }
  if (rows_left > 0) plan_prefills(rows_left, slices);
  return slices;
}

void Scheduler::plan_prefills(int room_rows, std::vector<StepSlice>& slices) const {
  std::vector<RequestId> ids;
  std::vector<QueuedPrefill> queue;
  for (const RequestId id : admitted_) {
    const Entry& prefill = requests_.at(id);
    if (prefill.state != State::kPrefilling) continue;
    ids.push_back(id);
    queue.push_back({.rows_left = prefill.request.rows - prefill.rows_done,
                     .cached = prefill.rows_done,
                     .prompt_tokens = prefill.request.prompt_tokens});
  }
  const PrefillStepLimits limits{
      .budget_ns = limits_.step_budget_ns, .share_cap = limits_.share_cap, .max_rows = room_rows};
  for (const PrefillChunk& chunk : plan_prefill_step(cost_, limits, queue)) {
    const QueuedPrefill& prefill = queue[chunk.index];
    const std::int64_t tail =
        cost::chunk_at(chunk.rows, prefill.cached, prefill.prompt_tokens).tail;
    slices.push_back({.id = ids[chunk.index],
                      .work = Work::kPrefill,
                      .first_row = static_cast<int>(prefill.cached),
                      .row_count = static_cast<int>(chunk.rows),
                      .is_last = chunk.rows == prefill.rows_left,
                      .tail_rows = static_cast<int>(tail)});
  }
}

void Scheduler::step_done(std::span<const StepSlice> slices) {
  for (const StepSlice& slice : slices) {
    if (slice.work != Work::kPrefill) continue;
    Entry& prefill = entry(slice.id);
    prefill.rows_done += slice.row_count;
    CHECK(prefill.rows_done <= prefill.request.rows);
    if (prefill.rows_done == prefill.request.rows) prefill.state = State::kOnHold;
  }
}

bool Scheduler::remove(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return false;
  if (found->second.state == State::kWaiting) {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), id));
    waiting_rows_ -= found->second.request.rows - found->second.rows_done;
  } else {
    admitted_.erase(std::find(admitted_.begin(), admitted_.end(), id));
    blocks_used_ -= found->second.blocks;
  }
  requests_.erase(found);
  return true;
}

SchedulerLoad Scheduler::load() const {
  SchedulerLoad load{.running = static_cast<int>(admitted_.size()),
                     .waiting = static_cast<int>(waiting_.size()),
                     .waiting_tokens = waiting_rows_,
                     .kv_blocks_used = blocks_used_};
  for (const auto& [id, entry] : requests_) {
    const int rows_left = entry.request.rows - entry.rows_done;
    if (entry.state != State::kWaiting) load.waiting_tokens += rows_left;
    const int hit = std::min(entry.request.awaits_kv ? entry.request.expected_hit : 0, rows_left);
    load.queued_ns += cost::quota_ns(
        cost_, cost::chunk_at(rows_left - hit, entry.rows_done + hit, entry.request.prompt_tokens));
  }
  return load;
}

Scheduler::Entry& Scheduler::entry(RequestId id) {
  const auto found = requests_.find(id);
  CHECK(found != requests_.end(), "the scheduler knows the request");
  return found->second;
}

}  // namespace millrace::dataplane::scheduler
