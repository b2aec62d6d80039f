// The way of a request into prefill: routed by push, or offered and claimed; fetched; run.

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/check.h"
#include "common/str_cat.h"
#include "controller/buckets/buckets.h"
#include "tests/sim/cluster/cluster_world.h"
#include "tests/sim/cluster/trace_file.h"

namespace millrace::sim {

using dataplane::routing::Charge;
using dataplane::routing::kBucketCount;
using dataplane::routing::Offers;

namespace {

void add(Charge& sum, const Charge& part, std::int64_t sign) {
  sum.requests += sign * part.requests;
  sum.quota_ns += sign * part.quota_ns;
  sum.kv_tokens += sign * part.kv_tokens;
}

}  // namespace

void ClusterWorld::arrive(RequestIndex index) {
  Request& request = requests_[index];
  RequestOutcome& outcome = outcome_.requests[index];
  const double pick = static_cast<double>(random_() >> 11) * 0x1p-53 * entrypoint_bounds_.back();
  outcome.entrypoint = static_cast<std::uint16_t>(
      std::upper_bound(entrypoint_bounds_.begin(), entrypoint_bounds_.end() - 1, pick) -
      entrypoint_bounds_.begin());
  ++live_;
  ++waiting_;
  request.bucket = policy_.has_buckets
                       ? dataplane::routing::bucket_of(request.input_tokens, scenario_.bucket_edges)
                       : 0;
  route(index);
}

/// Sends a request, or one that starts over, towards a prefill rank.
void ClusterWorld::route(RequestIndex index) {
  Request& request = requests_[index];
  request.quota_ns = dataplane::cost::quota_ns(
      scenario_.cost.prefill,
      dataplane::cost::chunk_at(request.input_tokens - request.cached_tokens, request.cached_tokens,
                                outcome_.requests[index].input_tokens));
  demand_[static_cast<std::size_t>(request.bucket)] += static_cast<std::uint64_t>(request.quota_ns);
  if (is_pulling()) {
    offer(index);
  } else {
    push(index);
  }
}

void ClusterWorld::push(RequestIndex index) {
  Request& request = requests_[index];
  const std::size_t e = outcome_.requests[index].entrypoint;
  const auto target = push_target(index, entrypoints_[e]);
  if (!target) {
    unplaced_.push_back(index);
    return;
  }
  request.prefill_target = static_cast<std::int32_t>(*target);
  if (request.decode_rank < 0 && !has_late_decode()) choose_decode(index, request.input_tokens);
  // Ours counts compute, the others rows; what a charge's quota means is up to who reads it.
  const std::int64_t work =
      is_ours() ? request.quota_ns : request.input_tokens - request.cached_tokens;
  prefill_view_.charge(e, *target, {index, request.attempt}, {1, work, request.charged_tokens});
  refresh_prefill(e, *target);
  add(on_the_way_[*target], {1, work, request.charged_tokens}, 1);
  at(now_ + delay_, kPush, *target, index);
}

std::optional<std::size_t> ClusterWorld::push_target(RequestIndex index, Entrypoint& entrypoint) {
  Request& request = requests_[index];
  const std::size_t e = outcome_.requests[index].entrypoint;
  if (is_ours()) return least_queued_instance(request.bucket, e);
  dataplane::routing::PushRequest asked{.input_tokens = request.input_tokens,
                                        .cached_tokens = request.cached_tokens};
  if (request.parent >= 0) {
    const std::int32_t rank = requests_[static_cast<std::size_t>(request.parent)].prefill_rank;
    if (rank >= 0) asked.holder = static_cast<std::size_t>(rank);
  }
  const auto target = entrypoint.router->pick_prefill(asked, entrypoint.prefill_ranks, now_point());
  if (target) {
    request.charged_tokens = dataplane::routing::credited_tokens(asked, *target, push_settings_);
  }
  return target;
}

/// Without pull: the instance of the bucket with the least compute, as the entrypoint knows it.
std::optional<std::size_t> ClusterWorld::least_queued_instance(int bucket,
                                                               std::size_t entrypoint) const {
  const auto serving = dataplane::routing::serving_bucket(bucket, bucket_instances_);
  std::optional<std::size_t> best;
  std::int64_t least = 0;
  // Each entrypoint begins elsewhere, so that they do not flock.
  const std::size_t count = prefill_instances_.size();
  for (std::size_t k = 0; k < count; ++k) {
    const std::size_t i = (k + entrypoint * count / entrypoints_.size()) % count;
    const Instance& instance = prefill_instances_[i];
    if (!instance.is_up || (policy_.has_buckets && serving != instance.bucket)) continue;
    const std::int64_t load = prefill_view_.load(entrypoint, i).quota_ns;
    if (!best || load < least) {
      best = i;
      least = load;
    }
  }
  return best;
}

void ClusterWorld::offer(RequestIndex index) {
  const Request& request = requests_[index];
  const std::size_t e = outcome_.requests[index].entrypoint;
  const absl::Status queued = entrypoints_[e].queue.push(
      request.bucket, {index, request.quota_ns,
                       TimePoint(std::chrono::nanoseconds(outcome_.requests[index].arrived))});
  CHECK(queued.ok());
  entrypoints_[e].pending_tokens += request.input_tokens;
  wake_for(e, request.bucket);
}

std::array<bool, kBucketCount> ClusterWorld::serves(std::size_t instance) const {
  if (!policy_.has_buckets) return {true, false, false, false};
  return dataplane::routing::served_buckets(prefill_instances_[instance].bucket, bucket_instances_);
}

dataplane::routing::ClaimLimits ClusterWorld::claim_limits() const {
  return {.quota_per_rank_ns = std::llround(scenario_.quota_per_rank_ms * 1e6),
          .head_start = std::chrono::nanoseconds(std::llround(scenario_.help_after_ms * 1e6))};
}

/// When a request that comes now could begin to run on an instance.
SimTime ClusterWorld::earliest_start(std::size_t instance) const {
  const auto queued = prefill_.queued_ns(instance);
  const SimTime step_left = std::max<SimTime>(prefill_.step_end(instance) - now_, 0);
  return std::max(step_left, queued[dataplane::routing::pick_rank(queued)]);
}

/// A new offer is answered first by the instance that can begin first; the others' claims come too
/// late and are not played out.
void ClusterWorld::wake_for(std::size_t entrypoint, int bucket) {
  const dataplane::routing::ClaimLimits limits = claim_limits();
  const auto serving = dataplane::routing::serving_bucket(bucket, bucket_instances_);
  std::optional<std::size_t> first;
  SimTime soonest = 0;
  for (std::size_t i = 0; i < prefill_instances_.size(); ++i) {
    const Instance& instance = prefill_instances_[i];
    if (!instance.is_up || instance.is_claiming) continue;
    const auto queued = prefill_.queued_ns(i);
    const bool is_own = !policy_.has_buckets || serving == instance.bucket;
    // Others help with an idle rank.
    const bool is_idle = queued[dataplane::routing::pick_rank(queued)] == 0;
    if (is_own ? !dataplane::routing::wants_more(queued, limits) : !is_idle) continue;
    const SimTime start = earliest_start(i);
    if (!first || start < soonest) {
      first = i;
      soonest = start;
    }
  }
  if (!first) return;
  prefill_instances_[*first].is_claiming = true;
  ++entrypoints_[entrypoint].claimed[static_cast<std::size_t>(bucket)];
  at(now_ + 2 * delay_, kClaim, *first,
     entrypoint * kBucketCount + static_cast<std::size_t>(bucket));
}

void ClusterWorld::try_claim(std::size_t index) {
  Instance& instance = prefill_instances_[index];
  const dataplane::routing::ClaimLimits limits = claim_limits();
  if (!is_pulling() || !instance.is_up || instance.is_claiming) return;
  if (!dataplane::routing::wants_more(prefill_.queued_ns(index), limits)) return;
  std::vector<Offers> offers(entrypoints_.size());
  for (std::size_t e = 0; e < entrypoints_.size(); ++e) {
    for (int bucket = 0; bucket < kBucketCount; ++bucket) {
      const auto* head = entrypoints_[e].queue.head(bucket);
      if (head == nullptr) continue;
      const auto b = static_cast<std::size_t>(bucket);
      const auto size = static_cast<std::int64_t>(entrypoints_[e].queue.size(bucket));
      offers[e][b] = {head->since, head->quota_ns, size - entrypoints_[e].claimed[b]};
    }
  }
  const auto claimable = dataplane::routing::claimable_buckets(
      offers, serves(index), prefill_.queued_ns(index), now_point(), limits);
  const auto target = dataplane::routing::choose_claim(offers, claimable);
  if (!target) return;
  instance.is_claiming = true;
  const auto bucket = static_cast<std::size_t>(target->bucket);
  ++entrypoints_[target->entrypoint].claimed[bucket];
  at(now_ + delay_, kClaim, index, target->entrypoint * kBucketCount + bucket);
}

/// The entrypoint grants the longest-waiting request and picks its decode rank, or says "gone".
void ClusterWorld::answer_claim(std::size_t instance, std::size_t e, int bucket) {
  Entrypoint& entrypoint = entrypoints_[e];
  --entrypoint.claimed[static_cast<std::size_t>(bucket)];
  ++outcome_.claims;
  if (!prefill_instances_[instance].is_up) {
    prefill_instances_[instance].is_claiming = false;
    wake_for(e, bucket);
    return;
  }
  const auto granted = entrypoint.queue.grant(bucket);
  if (!granted) {
    ++outcome_.claims_gone;
    at(now_ + delay_, kNothing, instance);
    return;
  }
  const auto request = static_cast<RequestIndex>(granted->request);
  if (!has_late_decode()) choose_decode(request, entrypoint.pending_tokens);
  entrypoint.pending_tokens -= requests_[request].input_tokens;
  at(now_ + delay_, kGrant, instance, request);
}

std::size_t ClusterWorld::choose_rank(std::size_t index) {
  const auto queued = prefill_.queued_ns(index);
  const std::size_t within = policy_.has_rank_choice
                                 ? dataplane::routing::pick_rank(queued)
                                 : prefill_instances_[index].turn++ % queued.size();
  return index * queued.size() + within;
}

void ClusterWorld::accept_grant(std::size_t index, RequestIndex request) {
  prefill_instances_[index].is_claiming = false;
  if (!prefill_instances_[index].is_up) {
    start_over(request);
    return;
  }
  enqueue(choose_rank(index), request);
  try_claim(index);
}

void ClusterWorld::accept_push(std::size_t target, RequestIndex request) {
  const std::size_t instance = is_ours() ? target : prefill_.instance_of(target);
  const Request& pushed = requests_[request];
  const std::int64_t work =
      is_ours() ? pushed.quota_ns : pushed.input_tokens - pushed.cached_tokens;
  add(on_the_way_[target], {1, work, pushed.charged_tokens}, -1);
  if (!prefill_instances_[instance].is_up) {
    start_over(request);
    return;
  }
  enqueue(is_ours() ? choose_rank(instance) : target, request);
}

void ClusterWorld::enqueue(std::size_t rank, RequestIndex index) {
  Request& request = requests_[index];
  request.prefill_rank = static_cast<std::int32_t>(rank);
  const SimTime ready = fetch(rank, request);
  request.is_fetching = ready > now_;
  prefill_.add(rank, {.request = index,
                      .rows = request.input_tokens - request.cached_tokens,
                      .cached = request.cached_tokens,
                      .prompt_end = outcome_.requests[index].input_tokens,
                      .prompt_tokens = request.charged_tokens,
                      .is_ready = !request.is_fetching});
  if (request.is_fetching) {
    at(ready, kFetched, rank, index);
  } else {
    begin_prefill_step(prefill_.instance_of(rank));
  }
}

/// When a request's stored KV is there: read on the node with the shorter read queue of the two
/// that it goes to (DualPath), unless its instance has it in host memory. Past the deadline it runs
/// without. `now` when nothing has to be read.
SimTime ClusterWorld::fetch(std::size_t rank, Request& request) {
  request.is_late = false;
  if (request.cached_tokens == 0) return now_;
  const std::size_t instance = prefill_.instance_of(rank);
  if (request.parent >= 0) {
    const std::int32_t holder = requests_[static_cast<std::size_t>(request.parent)].prefill_rank;
    if (holder >= 0 && prefill_.instance_of(static_cast<std::size_t>(holder)) == instance) {
      return now_;
    }
  }
  SimTime* queue = &prefill_instances_[instance].storage_free_at;
  double nodes = std::max(static_cast<double>(scenario_.prefill_ranks) / 8, 1.0);
  if (request.decode_rank >= 0) {
    const auto decode_rank = static_cast<std::size_t>(request.decode_rank);
    SimTime& other = decode_instances_[decode_.instance_of(decode_rank)].storage_free_at;
    if (other < *queue) {
      queue = &other;
      nodes = std::max(static_cast<double>(scenario_.decode_ranks) / 8, 1.0);
    }
  }
  const double bytes = static_cast<double>(request.cached_tokens) * scenario_.kv_bytes_per_token;
  *queue = std::max(*queue, now_) +
           std::llround(bytes / (scenario_.storage_gb_per_s * nodes));  // GB/s = bytes per ns
  const SimTime ready = *queue + std::llround(scenario_.storage_latency_ms * 1e6);
  const SimTime deadline = now_ + std::llround(scenario_.fetch_deadline_s * 1e9);
  request.is_late = ready > deadline;
  return std::min(ready, deadline);
}

void ClusterWorld::fetched(std::size_t rank, RequestIndex index) {
  Request& request = requests_[index];
  if (!request.is_fetching || request.prefill_rank != static_cast<std::int32_t>(rank)) return;
  request.is_fetching = false;
  if (request.is_late) {
    request.cached_tokens = 0;
    ++outcome_.fetch_timeouts;
  }
  const std::size_t instance = prefill_.instance_of(rank);
  prefill_.set_ready(rank, index, request.input_tokens - request.cached_tokens,
                     request.cached_tokens);
  begin_prefill_step(instance);
}

void ClusterWorld::begin_prefill_step(std::size_t instance) {
  const auto end = prefill_.begin_step(instance, now_);
  if (end) schedule_prefill(prefill_cores_.begin(instance, *end - now_, now_));
}

void ClusterWorld::schedule_prefill(std::span<const CoreShares::End> ends) {
  for (const CoreShares::End& end : ends) {
    prefill_.set_step_end(end.instance, end.at);
    at(end.at, kPrefillStep, end.instance, ++prefill_instances_[end.instance].epoch);
  }
}

void ClusterWorld::end_prefill_step(std::size_t instance) {
  schedule_prefill(prefill_cores_.end(instance, now_));
  finished_.clear();
  prefill_.end_step(instance, is_counted(), finished_);
  for (const RequestIndex request : finished_) prefilled(request);
  if (!is_pulling()) {
    if (is_ours()) {
      prefill_view_.mark(instance);
    } else {
      const auto ranks = static_cast<std::size_t>(scenario_.prefill_ranks);
      for (std::size_t r = 0; r < ranks; ++r) prefill_view_.mark(instance * ranks + r);
    }
  }
  begin_prefill_step(instance);
  try_claim(instance);
}

void ClusterWorld::release_prefill(RequestIndex index) {
  Request& request = requests_[index];
  if (request.prefill_target < 0) return;
  const auto target = static_cast<std::size_t>(request.prefill_target);
  const std::size_t e = outcome_.requests[index].entrypoint;
  prefill_view_.release(e, target, {index, request.attempt});
  refresh_prefill(e, target);
  request.prefill_target = -1;
}

void ClusterWorld::refresh_prefill(std::size_t e, std::size_t target) {
  if (is_ours()) return;
  const Charge load = prefill_view_.load(e, target);
  dataplane::routing::PushRank& rank = entrypoints_[e].prefill_ranks[target];
  rank.requests = load.requests;
  rank.tokens = load.quota_ns;
  rank.prompt_tokens = load.kv_tokens;
}

/// What a target reports of itself, with what is on its way there.
Charge ClusterWorld::prefill_load(std::size_t target) const {
  Charge sum = on_the_way_[target];
  if (!is_ours()) {
    const PrefillLoad& load = prefill_.load(target);
    add(sum, {load.requests, load.tokens, load.prompt_tokens}, 1);
    return sum;
  }
  const auto queued = prefill_.queued_ns(target);
  for (std::size_t r = 0; r < queued.size(); ++r) {
    sum.requests += prefill_.load(target * queued.size() + r).requests;
    sum.quota_ns += queued[r];
  }
  return sum;
}

void ClusterWorld::split_buckets() {
  controller::buckets::SplitInput input;
  std::vector<std::size_t> up;
  for (std::size_t i = 0; i < prefill_instances_.size(); ++i) {
    if (!prefill_instances_[i].is_up) continue;
    up.push_back(i);
    input.instances.push_back({str_cat(i), prefill_instances_[i].bucket});
  }
  if (now_ > 0) input.demand = {demand_.begin(), demand_.end()};
  input.previous_demand = last_demand_;
  last_demand_ = input.demand;
  demand_ = {};
  const auto split = controller::buckets::split_instances(
      {.bucket_count = kBucketCount,
       .max_moves = static_cast<int>(scenario_.bucket_max_moves),
       .min_share_change = scenario_.bucket_min_share_change},
      input);
  CHECK(split.ok());
  bucket_instances_ = {};
  for (std::size_t i = 0; i < up.size(); ++i) {
    const int bucket = split->bucket_of[i];
    prefill_instances_[up[i]].bucket = bucket;
    ++bucket_instances_[static_cast<std::size_t>(bucket)];
  }
  for (const std::size_t instance : up) try_claim(instance);
}

void ClusterWorld::retry_unplaced() {
  std::deque<RequestIndex> requests;
  requests.swap(unplaced_);
  for (const RequestIndex request : requests) push(request);
}

}  // namespace millrace::sim
