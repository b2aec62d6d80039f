#include "tests/sim/cluster/cluster_world.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "common/check.h"

namespace millrace::sim {
namespace {

SimTime to_sim(double seconds) { return static_cast<SimTime>(std::llround(seconds * 1e9)); }

PrefillFleet::Settings prefill_settings(const Scenario& s, const PolicyChoice& policy) {
  PrefillFleet::Settings settings{.instances = s.prefill_instances,
                                  .ranks = s.prefill_ranks,
                                  .cost = s.cost.prefill,
                                  .step_overhead_ns = s.step_overhead_ms * 1e6};
  const bool is_variable =
      policy.policy == dataplane::routing::Policy::kMillrace && policy.has_variable_chunk;
  settings.limits.budget_ns = is_variable ? s.step_budget_ms * 1e6 : 1e18;
  settings.limits.share_cap = is_variable ? s.share_cap : 1;
  if (s.prefill_max_rows > 0) settings.limits.max_rows = s.prefill_max_rows;
  if (!is_variable) settings.limits.max_rows = std::min(settings.limits.max_rows, s.chunk_rows);
  return settings;
}

std::vector<double> cumulated_shares(const Scenario& s) {
  std::vector<double> bounds;
  double sum = 0;
  for (std::int64_t e = 0; e < s.entrypoints; ++e) {
    sum += s.entrypoint_shares.empty() ? 1 : s.entrypoint_shares[static_cast<std::size_t>(e)];
    bounds.push_back(sum);
  }
  return bounds;
}

}  // namespace

std::size_t ClusterWorld::target_count() const {
  return is_ours() ? prefill_.instance_count() : prefill_.rank_count();
}

ClusterWorld::ClusterWorld(const Scenario& scenario, const PolicyChoice& policy,
                           std::span<const Arrival> arrivals, std::uint64_t seed)
    : scenario_(scenario),
      policy_(policy),
      arrivals_(arrivals),
      random_(seed),
      delay_(to_sim(scenario.network_delay_ms * 1e-3)),
      warmup_(to_sim(scenario.warmup_s)),
      horizon_(to_sim(scenario.horizon_s)),
      entrypoint_bounds_(cumulated_shares(scenario)),
      push_settings_{.ranks_per_instance = static_cast<int>(scenario.prefill_ranks)},
      prefill_(prefill_settings(scenario, policy)),
      decode_({.instances = scenario.decode_instances,
               .ranks = scenario.decode_ranks,
               .cost = scenario.cost.decode,
               .step_overhead_ns = scenario.decode_step_overhead_ms * 1e6}),
      prefill_cores_(prefill_.instance_count(), scenario.prefill_per_core),
      decode_cores_(decode_.instance_count(), scenario.decode_per_core),
      prefill_instances_(static_cast<std::size_t>(scenario.prefill_instances)),
      decode_instances_(static_cast<std::size_t>(scenario.decode_instances)),
      prefill_view_(static_cast<std::size_t>(scenario.entrypoints), target_count()),
      on_the_way_(target_count()),
      decode_view_(static_cast<std::size_t>(scenario.entrypoints), decode_.rank_count(),
                   scenario.kv_tokens_per_rank),
      decode_requests_(decode_.rank_count()),
      announced_kv_(decode_.rank_count()) {
  for (std::int64_t e = 0; e < scenario.entrypoints; ++e) {
    Entrypoint& entrypoint = entrypoints_.emplace_back(arrivals.size());
    if (is_ours()) continue;
    entrypoint.router.emplace(policy.policy, push_settings_, random_());
    entrypoint.prefill_ranks.resize(prefill_.rank_count());
  }
  for (Instance& instance : prefill_instances_) {
    instance.bucket = policy.has_buckets ? -1 : 0;  // −1: new
  }
  requests_.reserve(arrivals.size());
  outcome_.requests.reserve(arrivals.size());
  for (const Arrival& arrival : arrivals) {
    requests_.push_back({.input_tokens = arrival.input_tokens,
                         .cached_tokens = arrival.cached_tokens,
                         .tokens_left = arrival.output_tokens,
                         .parent = arrival.parent});
    outcome_.requests.push_back({.arrived = arrival.at,
                                 .input_tokens = arrival.input_tokens,
                                 .output_tokens = arrival.output_tokens});
  }
  outcome_.policy = policy.name();
}

void ClusterWorld::at(SimTime time, Kind kind, std::size_t a, std::size_t b) {
  events_.push({.at = time,
                .kind = kind,
                .a = static_cast<std::uint32_t>(a),
                .b = static_cast<std::uint32_t>(b)});
}

void ClusterWorld::handle(const Event& event) {
  switch (static_cast<Kind>(event.kind)) {
    case kArrival:
      ++next_arrival_;
      if (next_arrival_ < arrivals_.size())
        at(arrivals_[next_arrival_].at, kArrival, next_arrival_);
      return arrive(event.a);
    case kClaim:
      return answer_claim(event.a, event.b / dataplane::routing::kBucketCount,
                          static_cast<int>(event.b % dataplane::routing::kBucketCount));
    case kGrant:
      return accept_grant(event.a, event.b);
    case kNothing:
      prefill_instances_[event.a].is_claiming = false;
      return try_claim(event.a);
    case kPush:
      return accept_push(event.a, event.b);
    case kFetched:
      return fetched(event.a, event.b);
    case kPrefillStep:
      if (event.b == prefill_instances_[event.a].epoch) end_prefill_step(event.a);
      return;
    case kHandover:
      return accept_handover(event.a, event.b);
    case kDecodeStep:
      if (event.b == decode_instances_[event.a].epoch) end_decode_step(event.a);
      return;
    case kReport:
      return take_reports();
    case kDeliver:
      return deliver_reports(event.a == 1);
    case kSplit:
      split_buckets();
      return at(now_ + to_sim(scenario_.bucket_round_s), kSplit);
    case kRetry:
      return route(event.a);
    case kFault:
      return begin_fault(scenario_.faults[event.a]);
    case kFaultEnds:
      return end_fault(scenario_.faults[event.a]);
    case kSample:
      sample();
      return at(now_ + kSecond, kSample);
  }
}

FleetOutcome ClusterWorld::fleet_outcome(const StepSums& sums, std::size_t ranks) const {
  FleetOutcome fleet{.steps = sums.steps};
  if (sums.mean_ns > 0) fleet.max_over_mean = sums.slowest_ns / sums.mean_ns;
  const double counted_ns = static_cast<double>(std::min(now_, horizon_) - warmup_);
  if (counted_ns > 0) {
    fleet.utilisation = sums.compute_ns / (counted_ns * static_cast<double>(ranks));
  }
  return fleet;
}

ClusterOutcome ClusterWorld::run(const std::function<void(double)>& progress) {
  const auto began = std::chrono::steady_clock::now();
  if (is_ours() && policy_.has_buckets) at(0, kSplit);
  for (std::size_t i = 0; i < scenario_.faults.size(); ++i) {
    at(to_sim(scenario_.faults[i].at_s), kFault, i);
    at(to_sim(scenario_.faults[i].until_s), kFaultEnds, i);
  }
  at(0, kReport);
  at(0, kSample);
  if (!arrivals_.empty()) at(arrivals_[0].at, kArrival, 0);
  const SimTime end = horizon_ + to_sim(scenario_.drain_s);
  SimTime next_progress = kSecond;
  while (live_ > 0 || next_arrival_ < arrivals_.size()) {
    if (events_.top().at > end) break;
    const Event event = events_.pop();
    now_ = event.at;
    ++outcome_.events;
    handle(event);
    if (progress && now_ >= next_progress) {
      progress(static_cast<double>(now_) * 1e-9);
      next_progress = now_ + kSecond;
    }
  }
  outcome_.prefill = fleet_outcome(prefill_.sums(), prefill_.rank_count());
  outcome_.decode = fleet_outcome(decode_.sums(), decode_.rank_count());
  outcome_.unfinished = live_;
  outcome_.charges_outstanding = prefill_view_.outstanding() + decode_view_.ledgers().outstanding();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - began;
  outcome_.wall_s = wall.count();
  return std::move(outcome_);
}

ClusterOutcome simulate_cluster(const Scenario& scenario, const PolicyChoice& policy,
                                std::span<const Arrival> arrivals, std::uint64_t seed,
                                const std::function<void(double)>& progress) {
  return ClusterWorld(scenario, policy, arrivals, seed).run(progress);
}

}  // namespace millrace::sim
