#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "dataplane/cost/cost_file.h"
#include "dataplane/routing/buckets.h"
#include "dataplane/routing/prefill_claim.h"
#include "dataplane/routing/push_policy.h"

/// The whole cluster in virtual time: what a run is made of.
namespace millrace::sim {

/// Virtual nanoseconds since the start of a run.
using SimTime = std::int64_t;
inline constexpr SimTime kSecond = 1'000'000'000;

/// One kind of generated requests; lengths are log-normal, cut to their range.
struct RequestClass {
  double share = 1;  ///< of requests, relative to the other classes
  double input_median = 2000;
  double input_sigma = 1;  ///< of the logarithm
  std::int64_t input_min = 1;
  std::int64_t input_max = 1 << 20;
  double output_median = 200;
  double output_sigma = 0.8;
  std::int64_t output_max = 4096;
  double cached_share = 0;  ///< of the input, in whole blocks

  friend bool operator==(const RequestClass&, const RequestClass&) = default;
};

struct ArrivalSettings {
  std::string trace;              ///< Mooncake .jsonl or Azure .csv, also .gz; empty = generated
  std::int64_t rows = 0;          ///< of the trace, at most; 0 = all
  std::int64_t copies = 1;        ///< overlaid, each shifted in time and with prefixes of its own
  double speed = 1;               ///< times are divided by it
  double tick_s = 0;              ///< a time stamp means "within the next tick_s seconds"
  std::int64_t cache_blocks = 0;  ///< blocks of 512 tokens that each copy's cache holds; 0 = all

  double rate = 1;                    ///< generated requests a second, Poisson
  double burst_every_s = 0;           ///< 0 = none
  std::int64_t burst_requests = 0;    ///< of the last class, all at once
  std::int64_t at_start = 0;          ///< requests of the last class at time 0
  std::vector<RequestClass> classes;  ///< `[[class]]`
};

enum class Role { kPrefill, kDecode };

/// A rank dies and takes its instance down, or is slow for a while. `[[fault]]`.
struct Fault {
  double at_s = 0;
  double until_s = 0;
  Role role = Role::kPrefill;
  std::int64_t rank = 0;
  double slow_factor = 0;  ///< its compute takes so many times as long; 0 = it is down
};

/// A run, as a scenario file describes it (scenario_file.h says what each value means).
struct Scenario {
  std::string name = "unnamed";
  double horizon_s = 60;  ///< arrivals end
  double warmup_s = 0;    ///< requests that arrive before it are served, not counted
  double drain_s = 600;   ///< what is unfinished then counts as a miss
  dataplane::cost::CostFile cost;
  ArrivalSettings arrivals;

  std::int64_t entrypoints = 4;
  std::vector<double> entrypoint_shares;  ///< empty = equal
  double report_period_ms = 200;
  double report_delay_ms = 5;
  double network_delay_ms = 0.5;

  std::int64_t prefill_instances = 1;
  std::int64_t prefill_ranks = 8;  ///< of an instance
  double step_budget_ms = 300;
  double quota_per_rank_ms = 600;
  double share_cap = 1;
  std::int64_t chunk_rows = 8192;     ///< of a step where chunks do not vary with cost
  std::int64_t prefill_max_rows = 0;  ///< of a step, whatever the policy; 0 = no bound
  std::int64_t prefill_per_core = 1;  ///< instances that share the time of what they run on
  double step_overhead_ms = 2;
  double fetch_deadline_s = 5;

  double help_after_ms =
      std::chrono::duration<double, std::milli>(dataplane::routing::ClaimLimits{}.head_start)
          .count();
  dataplane::routing::BucketEdges bucket_edges;
  double bucket_round_s = 10;
  std::int64_t bucket_max_moves = 2;
  double bucket_min_share_change = 0.05;

  std::int64_t decode_instances = 1;
  std::int64_t decode_ranks = 8;  ///< of an instance
  std::int64_t decode_per_core = 1;
  double decode_step_overhead_ms = 0;
  std::int64_t late_decode_choice = 0;  ///< 1: at hand-over; 0: with the prefill rank
  std::int64_t decode_look = 16;        ///< ranks with room that millrace looks at
  std::int64_t kv_tokens_per_rank = 1 << 20;

  double kv_bytes_per_token = 890;
  double storage_gb_per_s = 25;  ///< of a node, which is an instance of 8 ranks or a share of one
  double storage_latency_ms = 5;
  double handover_gb_per_s = 20;
  double handover_latency_ms = 5;

  double ttft_limit_s = 4;
  double tpot_limit_ms = 50;
  double limit_share = 0.9;  ///< of requests that must meet both

  std::vector<Fault> faults;
};

/// A policy to run, and for ours which of its layers are switched off.
struct PolicyChoice {
  dataplane::routing::Policy policy = dataplane::routing::Policy::kMillrace;
  bool has_buckets = true;
  bool has_pull = true;            ///< off: pushed to the instance with the least compute queued
  bool has_rank_choice = true;     ///< off: ranks in turn
  bool has_variable_chunk = true;  ///< off: a fixed number of rows a step

  std::string name() const;
};

/// "least_tokens", "millrace", "millrace:no_pull,no_buckets". kInvalidArgument lists what there is.
absl::StatusOr<PolicyChoice> parse_policy_choice(std::string_view text);

/// The same scenario at `factor` times its arrival rate.
Scenario scale_load(const Scenario& scenario, double factor);

}  // namespace millrace::sim
