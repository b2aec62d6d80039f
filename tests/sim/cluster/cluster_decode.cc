// The way of a request through decode; load reports; ranks that die or are slow.

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "tests/sim/cluster/cluster_world.h"
#include "tests/sim/cluster/trace_file.h"

namespace millrace::sim {

using dataplane::routing::Charge;

/// Its last row ran: the first token goes to the entrypoint, the KV to the decode rank.
void ClusterWorld::prefilled(RequestIndex index) {
  Request& request = requests_[index];
  RequestOutcome& outcome = outcome_.requests[index];
  release_prefill(index);
  if (outcome.first_token < 0) {
    outcome.first_token = now_ + delay_;
    --waiting_;
  }
  --request.tokens_left;
  if (request.tokens_left == 0) {
    release_decode(index);
    finish(index);
    return;
  }
  hand_over(index);
}

/// Picks and charges a decode rank; false when none has room.
bool ClusterWorld::choose_decode(RequestIndex index, std::int64_t pending_tokens) {
  Request& request = requests_[index];
  const std::size_t e = outcome_.requests[index].entrypoint;
  const auto ranks = decode_view_.ranks(e);
  const auto rank = is_ours() ? dataplane::routing::pick_decode_rank(
                                    {request.input_tokens, request.input_tokens}, pending_tokens,
                                    decode_view_.totals(e), ranks,
                                    {random_(), static_cast<std::size_t>(scenario_.decode_look)})
                              : entrypoints_[e].router->pick_decode(request.input_tokens, ranks);
  if (!rank) return false;
  request.decode_rank = static_cast<std::int32_t>(*rank);
  request.announced_kv = request.input_tokens;
  decode_requests_[*rank] += 1;
  announced_kv_[*rank] += request.announced_kv;
  decode_view_.ledgers().charge(e, *rank, {index, request.attempt}, {1, 0, request.input_tokens});
  decode_view_.refresh(e, *rank);
  return true;
}

void ClusterWorld::release_decode(RequestIndex index) {
  Request& request = requests_[index];
  if (request.decode_rank < 0) return;
  const auto rank = static_cast<std::size_t>(request.decode_rank);
  const std::size_t e = outcome_.requests[index].entrypoint;
  // False after the rank's death: its ledger began anew, and so did what it counts itself.
  if (decode_view_.ledgers().release(e, rank, {index, request.attempt})) {
    decode_requests_[rank] -= 1;
    announced_kv_[rank] -= request.announced_kv;
    decode_view_.refresh(e, rank);
  }
  request.decode_rank = -1;
  request.announced_kv = 0;
}

void ClusterWorld::hand_over(RequestIndex index) {
  Request& request = requests_[index];
  if (request.decode_rank < 0 && !choose_decode(index, request.input_tokens)) {
    decode_waiting_.push_back(index);
    return;
  }
  const double bytes = static_cast<double>(request.input_tokens) * scenario_.kv_bytes_per_token;
  const double transfer_ns =
      scenario_.handover_latency_ms * 1e6 + bytes / scenario_.handover_gb_per_s;
  at(now_ + std::llround(transfer_ns), kHandover, static_cast<std::size_t>(request.decode_rank),
     index);
}

void ClusterWorld::accept_handover(std::size_t rank, RequestIndex index) {
  Request& request = requests_[index];
  if (request.decode_rank != static_cast<std::int32_t>(rank)) {
    hand_over(index);  // it died meanwhile; the prefill rank kept its copy
    return;
  }
  announced_kv_[rank] -= request.announced_kv;
  request.announced_kv = 0;
  decode_.add(rank, index, request.input_tokens, request.tokens_left);
  begin_decode_step(decode_.instance_of(rank));
}

void ClusterWorld::begin_decode_step(std::size_t instance) {
  const auto end = decode_.begin_step(instance, now_);
  if (end) schedule_decode(decode_cores_.begin(instance, *end - now_, now_));
}

void ClusterWorld::schedule_decode(std::span<const CoreShares::End> ends) {
  for (const CoreShares::End& end : ends) {
    at(end.at, kDecodeStep, end.instance, ++decode_instances_[end.instance].epoch);
  }
}

void ClusterWorld::end_decode_step(std::size_t instance) {
  schedule_decode(decode_cores_.end(instance, now_));
  ended_.clear();
  decode_.end_step(instance, is_counted(), ended_);
  for (const auto& [request, rank] : ended_) {
    requests_[request].tokens_left = 0;
    release_decode(request);
    finish(request);
  }
  begin_decode_step(instance);
  while (!ended_.empty() && !decode_waiting_.empty()) {
    const RequestIndex request = decode_waiting_.front();
    if (!choose_decode(request, requests_[request].input_tokens)) break;
    decode_waiting_.pop_front();
    hand_over(request);
  }
}

void ClusterWorld::finish(RequestIndex index) {
  RequestOutcome& outcome = outcome_.requests[index];
  outcome.ended = std::max(now_ + delay_, outcome.first_token);
  ++outcome.times_ended;
  --live_;
}

Charge ClusterWorld::decode_load(std::size_t rank) const {
  return {decode_requests_[rank], 0, decode_.kv_tokens(rank) + announced_kv_[rank]};
}

void ClusterWorld::take_reports() {
  bool is_any =
      decode_view_.ledgers().take_reports([this](std::size_t rank) { return decode_load(rank); });
  const bool is_prefill =
      prefill_view_.take_reports([this](std::size_t target) { return prefill_load(target); });
  if (is_any) at(now_ + std::llround(scenario_.report_delay_ms * 1e6), kDeliver, 0);
  if (is_prefill) at(now_ + std::llround(scenario_.report_delay_ms * 1e6), kDeliver, 1);
  at(now_ + std::llround(scenario_.report_period_ms * 1e6), kReport);
}

void ClusterWorld::deliver_reports(bool is_prefill) {
  if (is_prefill) {
    prefill_view_.deliver(
        [this](std::size_t e, std::size_t target) { refresh_prefill(e, target); });
  } else {
    decode_view_.ledgers().deliver(
        [this](std::size_t e, std::size_t rank) { decode_view_.refresh(e, rank); });
  }
}

void ClusterWorld::begin_fault(const Fault& fault) {
  const auto rank = static_cast<std::size_t>(fault.rank);
  if (fault.slow_factor > 0) {
    if (fault.role == Role::kPrefill) prefill_.set_slowness(rank, fault.slow_factor);
    if (fault.role == Role::kDecode) decode_.set_slowness(rank, fault.slow_factor);
  } else if (fault.role == Role::kPrefill) {
    prefill_down(prefill_.instance_of(rank));
  } else {
    decode_down(decode_.instance_of(rank));
  }
}

void ClusterWorld::end_fault(const Fault& fault) {
  const auto rank = static_cast<std::size_t>(fault.rank);
  if (fault.slow_factor > 0) {
    if (fault.role == Role::kPrefill) prefill_.set_slowness(rank, 1);
    if (fault.role == Role::kDecode) decode_.set_slowness(rank, 1);
  } else if (fault.role == Role::kPrefill) {
    const std::size_t instance = prefill_.instance_of(rank);
    set_prefill_up(instance, true);
    retry_unplaced();
  } else {
    const std::size_t instance = decode_.instance_of(rank);
    decode_instances_[instance].is_up = true;
    const auto ranks = static_cast<std::size_t>(scenario_.decode_ranks);
    for (std::size_t r = 0; r < ranks; ++r) decode_view_.set_accepting(instance * ranks + r, true);
    std::deque<RequestIndex> waiting;
    waiting.swap(decode_waiting_);
    for (const RequestIndex request : waiting) hand_over(request);
  }
}

/// A new attempt, told to its entrypoint after the delay of a message.
void ClusterWorld::start_over(RequestIndex index) {
  Request& request = requests_[index];
  release_prefill(index);
  release_decode(index);
  request.is_fetching = false;
  ++request.attempt;
  ++outcome_.requests[index].attempts;
  ++outcome_.rerouted;
  at(now_ + delay_, kRetry, index);
}

void ClusterWorld::set_prefill_up(std::size_t index, bool is_up) {
  Instance& instance = prefill_instances_[index];
  instance.is_up = is_up;
  ++instance.epoch;
  if (!is_ours()) {
    const auto ranks = static_cast<std::size_t>(scenario_.prefill_ranks);
    for (Entrypoint& entrypoint : entrypoints_) {
      for (std::size_t r = 0; r < ranks; ++r) {
        entrypoint.prefill_ranks[index * ranks + r].is_accepting = is_up;
      }
    }
  } else if (policy_.has_buckets) {
    bucket_instances_[static_cast<std::size_t>(instance.bucket)] += is_up ? 1 : -1;
    for (std::size_t i = 0; i < prefill_instances_.size(); ++i) try_claim(i);  // that it spills to
  }
  if (is_up) try_claim(index);
}

void ClusterWorld::prefill_down(std::size_t index) {
  if (!prefill_instances_[index].is_up) return;
  set_prefill_up(index, false);
  schedule_prefill(prefill_cores_.end(index, now_));
  const std::vector<RequestIndex> dropped = prefill_.clear(index);
  for (const RequestIndex request : dropped) start_over(request);
  if (is_pulling()) return;
  const auto ranks = static_cast<std::size_t>(scenario_.prefill_ranks);
  const std::size_t begin = is_ours() ? index : index * ranks;
  const std::size_t end = is_ours() ? index + 1 : begin + ranks;
  for (std::size_t target = begin; target < end; ++target) {
    prefill_view_.mark(target);
    for (std::size_t e = 0; e < entrypoints_.size(); ++e) refresh_prefill(e, target);
  }
}

void ClusterWorld::decode_down(std::size_t index) {
  Instance& instance = decode_instances_[index];
  if (!instance.is_up) return;
  instance.is_up = false;
  ++instance.epoch;
  schedule_decode(decode_cores_.end(index, now_));
  const auto ranks = static_cast<std::size_t>(scenario_.decode_ranks);
  const auto dropped = decode_.clear(index);
  for (std::size_t r = index * ranks; r < (index + 1) * ranks; ++r) {
    decode_view_.set_accepting(r, false);
    decode_view_.ledgers().restart(r);
    decode_requests_[r] = 0;
    announced_kv_[r] = 0;
    for (std::size_t e = 0; e < entrypoints_.size(); ++e) decode_view_.refresh(e, r);
  }
  for (const auto& [request, tokens_left] : dropped) {
    // What was delivered is part of the prompt now; its KV was stored as it filled blocks.
    Request& state = requests_[request];
    state.input_tokens += state.tokens_left - tokens_left;
    state.tokens_left = tokens_left;
    state.cached_tokens = cached_tokens_of(state.input_tokens, state.input_tokens);
    state.decode_rank = -1;
    start_over(request);
  }
  // Those that were to come here have no decode rank any more.
  for (RequestIndex r = 0; r < next_arrival_; ++r) {
    Request& request = requests_[r];
    if (request.decode_rank < 0 || outcome_.requests[r].times_ended > 0) continue;
    if (decode_.instance_of(static_cast<std::size_t>(request.decode_rank)) != index) continue;
    request.decode_rank = -1;
    request.announced_kv = 0;
  }
}

void ClusterWorld::sample() {
  outcome_.samples.push_back({static_cast<double>(now_) * 1e-9, waiting_, decode_.running()});
}

}  // namespace millrace::sim
