#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "controller/placement/shape.h"

/// How evenly ranks share the tokens of one MoE layer, with the production planner.
///
/// Every step each rank routes its tokens to experts drawn from drifting loads (expert_load.h). A
/// source rank deals its tokens for an expert to the expert's copies in turn, and goes on in the
/// next step where it stopped; ranks begin at different copies. After every interval a planner gets
/// the counts of the window and its plan holds from the next step on.
///
/// Not modelled: that tokens of one request want alike (so steps are more even than real ones), and
/// the time that moves take.
namespace millrace::sim {

struct ExpertScenario {
  int expert_count = 384;
  int experts_per_token = 6;
  int rank_count = 1;
  controller::placement::PlannerSettings settings;
  int tokens_per_rank = 1;  ///< of a step
  double zipf_exponent = 0.8;
  double correlation_steps = 1e6;  ///< within which experts forget how wanted they were
  int measured_intervals = 1;      ///< after a first one, at whose end the first plan is made
};

/// One way to place experts, over the measured steps.
struct ExpertArm {
  double moe_lb = 1.0;           ///< slowest rank / mean in tokens, mean over steps
  double moe_lb_p99 = 1.0;       ///< of steps
  double planned_lb = 1.0;       ///< max/mean that the plans promised, mean; 1 without plans
  std::int64_t moved_slots = 0;  ///< by all plans but the first
};

struct ExpertReport {
  std::int64_t measured_steps = 0;
  int slots = 0;             ///< of all ranks
  int successive_plans = 0;  ///< that moved_slots are of
  ExpertArm identity;        ///< slot s has expert s modulo their number, for ever
  ExpertArm plain;           ///< the published algorithm (controller/placement/plain.h)
  ExpertArm ours;            ///< controller/placement/plan.h
};

/// Equal scenarios and seeds give equal reports. kInvalidArgument names the impossible value.
absl::StatusOr<ExpertReport> simulate_experts(const ExpertScenario& scenario, std::uint64_t seed);

struct NamedExpertScenario {
  std::string_view name;
  ExpertScenario scenario;
};

/// The released model (384 experts, 6 a token) on production steps: prefill in chunks of 8,192
/// tokens a rank on 2 and on 4 ranks, decoding of 256 tokens a rank (64 requests, 4 positions each)
/// on 64. Loads are about Zipf 0.8, and are forgotten within 1,000 plan intervals: an expert that
/// is among the hottest gains or loses some tenth between two plans.
std::span<const NamedExpertScenario> expert_scenarios();

/// A scenario and its report in one line.
std::string summary(const NamedExpertScenario& named, const ExpertReport& report);

}  // namespace millrace::sim
