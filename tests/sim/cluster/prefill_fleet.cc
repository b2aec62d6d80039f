#include "tests/sim/cluster/prefill_fleet.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"

namespace millrace::sim {

using dataplane::scheduler::PrefillChunk;
using dataplane::scheduler::QueuedPrefill;

PrefillFleet::PrefillFleet(const Settings& settings)
    : settings_(settings), ranks_(static_cast<std::size_t>(settings.ranks)) {
  const auto count = static_cast<std::size_t>(settings.instances) * ranks_;
  queues_.resize(count);
  instances_.resize(static_cast<std::size_t>(settings.instances));
  queued_ns_.resize(count);
  loads_.resize(count);
  slowness_.resize(count, 1.0);
}

std::int64_t PrefillFleet::quota(const QueuedPrefill& work) const {
  return dataplane::cost::quota_ns(
      settings_.cost, dataplane::cost::chunk_at(work.rows_left, work.cached, work.prompt_tokens));
}

void PrefillFleet::add(std::size_t rank, const PrefillWork& work) {
  CHECK(work.rows > 0);
  Queue& queue = queues_[rank];
  queue.work.push_back({work.rows, work.cached, work.prompt_end, work.is_ready});
  queue.requests.push_back(work.request);
  queue.prompt_tokens.push_back(work.prompt_tokens);
  queued_ns_[rank] += quota(queue.work.back());
  loads_[rank].requests += 1;
  loads_[rank].tokens += work.rows;
  loads_[rank].prompt_tokens += work.prompt_tokens;
}

void PrefillFleet::set_ready(std::size_t rank, RequestIndex request, std::int64_t rows,
                             std::int64_t cached) {
  Queue& queue = queues_[rank];
  for (std::size_t i = queue.begin; i < queue.work.size(); ++i) {
    if (queue.requests[i] != request) continue;
    QueuedPrefill& work = queue.work[i];
    queued_ns_[rank] -= quota(work);
    loads_[rank].tokens += rows - work.rows_left;
    work = {rows, cached, work.prompt_tokens, true};
    queued_ns_[rank] += quota(work);
    return;
  }
}

std::optional<SimTime> PrefillFleet::begin_step(std::size_t instance, SimTime now) {
  Instance& state = instances_[instance];
  if (state.is_running) return std::nullopt;
  double slowest = 0;
  bool is_any = false;
  for (std::size_t rank = instance * ranks_; rank < (instance + 1) * ranks_; ++rank) {
    Queue& queue = queues_[rank];
    queue.step_ns = 0;
    queue.step.clear();
    if (queue.begin == queue.work.size()) continue;
    queue.step = plan_prefill_step(settings_.cost, settings_.limits,
                                   std::span(queue.work).subspan(queue.begin));
    for (const PrefillChunk& chunk : queue.step) queue.step_ns += chunk.cost_ns;
    queue.step_ns *= slowness_[rank];
    slowest = std::max(slowest, queue.step_ns);
    is_any = is_any || !queue.step.empty();
  }
  if (!is_any) return std::nullopt;
  state.is_running = true;
  state.step_end = now + std::llround(std::max(slowest + settings_.step_overhead_ns, 1.0));
  return state.step_end;
}

void PrefillFleet::erase(Queue& queue, std::size_t index) {
  const auto move_up = [&](auto& values) {
    const auto from = values.begin() + static_cast<std::ptrdiff_t>(queue.begin);
    std::move_backward(from, values.begin() + static_cast<std::ptrdiff_t>(index),
                       values.begin() + static_cast<std::ptrdiff_t>(index) + 1);
  };
  move_up(queue.work);
  move_up(queue.requests);
  move_up(queue.prompt_tokens);
  ++queue.begin;
}

/// What has run is given up once it is most of the vector, so that erasing stays cheap.
void PrefillFleet::give_up_space(Queue& queue) {
  if (queue.begin < 64 || queue.begin * 2 < queue.work.size()) return;
  const auto drop = [&](auto& values) {
    values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(queue.begin));
  };
  drop(queue.work);
  drop(queue.requests);
  drop(queue.prompt_tokens);
  queue.begin = 0;
}

void PrefillFleet::apply_chunks(std::size_t rank, std::vector<RequestIndex>& finished) {
  Queue& queue = queues_[rank];
  PrefillLoad& load = loads_[rank];
  for (const PrefillChunk& chunk : queue.step) {
    QueuedPrefill& work = queue.work[queue.begin + chunk.index];
    queued_ns_[rank] -= quota(work);
    work.rows_left -= chunk.rows;
    work.cached += chunk.rows;
    load.tokens -= chunk.rows;
    queued_ns_[rank] += quota(work);
  }
  // Erasing moves what lies before one place up, and leaves what lies behind where it is.
  const std::size_t begin = queue.begin;
  for (const PrefillChunk& chunk : queue.step) {
    const std::size_t index = begin + chunk.index;
    if (queue.work[index].rows_left > 0) continue;
    finished.push_back(queue.requests[index]);
    load.requests -= 1;
    load.prompt_tokens -= queue.prompt_tokens[index];
    erase(queue, index);
  }
  give_up_space(queue);
}

void PrefillFleet::end_step(std::size_t instance, bool is_counted,
                            std::vector<RequestIndex>& finished) {
  Instance& state = instances_[instance];
  CHECK(state.is_running);
  state.is_running = false;
  double slowest = 0;
  double sum = 0;
  for (std::size_t rank = instance * ranks_; rank < (instance + 1) * ranks_; ++rank) {
    if (queues_[rank].step.empty()) continue;
    slowest = std::max(slowest, queues_[rank].step_ns);
    sum += queues_[rank].step_ns;
    apply_chunks(rank, finished);
  }
  if (!is_counted) return;
  sums_.slowest_ns += slowest;
  sums_.mean_ns += sum / static_cast<double>(ranks_);
  sums_.compute_ns += sum;
  ++sums_.steps;
}

std::vector<RequestIndex> PrefillFleet::clear(std::size_t instance) {
  std::vector<RequestIndex> dropped;
  for (std::size_t rank = instance * ranks_; rank < (instance + 1) * ranks_; ++rank) {
    Queue& queue = queues_[rank];
    dropped.insert(dropped.end(), queue.requests.begin() + static_cast<std::ptrdiff_t>(queue.begin),
                   queue.requests.end());
    queue = {};
    queued_ns_[rank] = 0;
    loads_[rank] = {};
  }
  instances_[instance] = {};
  return dropped;
}

}  // namespace millrace::sim
