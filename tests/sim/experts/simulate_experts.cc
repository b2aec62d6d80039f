#include "tests/sim/experts/simulate_experts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "controller/placement/plain.h"
#include "controller/placement/plan.h"
#include "tests/sim/experts/expert_load.h"

namespace millrace::sim {
namespace {

using controller::placement::ExpertShape;
using controller::placement::kDecodeSettings;
using controller::placement::kMaxCount;
using controller::placement::kPrefillSettings;
using controller::placement::Placement;
using controller::placement::PlannerSettings;

/// How often loads change in an interval.
constexpr int kChangesPerInterval = 100;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

absl::Status validate(const ExpertScenario& scenario) {
  RETURN_IF_ERROR(controller::placement::validate(scenario.settings));
  const std::pair<const char*, int> counts[] = {
      {"expert_count", scenario.expert_count},
      {"rank_count", scenario.rank_count},
      {"tokens_per_rank", scenario.tokens_per_rank},
      {"measured_intervals", scenario.measured_intervals},
  };
  for (const auto& [name, value] : counts) {
    if (value < 1 || value > kMaxCount) {
      return absl::InvalidArgumentError(
          str_cat(name, " is ", value, "; it must be from 1 to ", kMaxCount));
    }
  }
  const int most = std::min(scenario.expert_count, 16);
  if (scenario.experts_per_token < 1 || scenario.experts_per_token > most) {
    return absl::InvalidArgumentError(str_cat("experts_per_token is ", scenario.experts_per_token,
                                              "; it must be from 1 to ", most));
  }
  if (!(scenario.zipf_exponent >= 0.0 && scenario.zipf_exponent <= 4.0)) {
    return absl::InvalidArgumentError(
        str_cat("zipf_exponent is ", scenario.zipf_exponent, "; it must be from 0 to 4"));
  }
  if (!(scenario.correlation_steps >= 1.0 && scenario.correlation_steps <= 1e15)) {
    return absl::InvalidArgumentError(str_cat("correlation_steps is ", scenario.correlation_steps,
                                              "; it must be from 1 to 1e15"));
  }
  return absl::OkStatus();
}

/// Copies of every expert on ranks, under one way to place them, and what steps came to.
class Arm {
 public:
  Arm(const ExpertShape& shape, Placement placement)
      : shape_(shape), next_copy_(at(shape.rank_count) * at(shape.expert_count)) {
    for (std::size_t i = 0; i < next_copy_.size(); ++i) {
      next_copy_[i] = static_cast<std::uint32_t>(i / at(shape.expert_count));
    }
    place(std::move(placement));
  }

  const Placement& placement() const { return placement_; }
  void place(Placement placement);
  /// counts [source rank, expert]
  void add_step(const std::vector<std::uint32_t>& counts);
  void add_plan(double promised, std::int64_t moved_slots) {
    promised_.push_back(promised);
    if (promised_.size() > 1) moved_slots_ += moved_slots;
  }
  ExpertArm result() const;

 private:
  const ExpertShape& shape_;
  Placement placement_;
  std::vector<std::uint32_t> rank_of_;     // of each copy, expert by expert
  std::vector<std::uint32_t> first_copy_;  // [expert], and the end
  std::vector<std::uint32_t> next_copy_;   // [source rank, expert], modulo the copies
  std::vector<double> step_lb_;
  std::vector<double> promised_;
  std::int64_t moved_slots_ = 0;
};

void Arm::place(Placement placement) {
  placement_ = std::move(placement);
  std::vector<std::vector<std::uint32_t>> ranks(at(shape_.expert_count));
  for (int slot = 0; slot < shape_.slot_count(); ++slot) {
    ranks[at(placement_.expert_of[at(slot)])].push_back(
        static_cast<std::uint32_t>(slot / shape_.slots_per_rank));
  }
  rank_of_.clear();
  first_copy_.assign(1, 0);
  for (const std::vector<std::uint32_t>& of_expert : ranks) {
    rank_of_.insert(rank_of_.end(), of_expert.begin(), of_expert.end());
    first_copy_.push_back(static_cast<std::uint32_t>(rank_of_.size()));
  }
}

void Arm::add_step(const std::vector<std::uint32_t>& counts) {
  std::vector<std::uint64_t> rank_tokens(at(shape_.rank_count), 0);
  const std::size_t experts = at(shape_.expert_count);
  for (std::size_t source = 0; source < at(shape_.rank_count); ++source) {
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const std::uint32_t tokens = counts[source * experts + expert];
      if (tokens == 0) continue;
      const std::uint32_t* const ranks = &rank_of_[first_copy_[expert]];
      const std::uint32_t copies = first_copy_[expert + 1] - first_copy_[expert];
      if (copies == 1) {
        rank_tokens[ranks[0]] += tokens;
        continue;
      }
      std::uint32_t& next = next_copy_[source * experts + expert];
      const std::uint32_t all_round = tokens / copies;
      if (all_round > 0) {
        for (std::uint32_t copy = 0; copy < copies; ++copy) rank_tokens[ranks[copy]] += all_round;
      }
      next %= copies;
      for (std::uint32_t left = tokens % copies; left > 0; --left) {
        ++rank_tokens[ranks[next]];
        next = next + 1 == copies ? 0 : next + 1;
      }
    }
  }
  const auto sum = std::accumulate(rank_tokens.begin(), rank_tokens.end(), std::uint64_t{0});
  const auto slowest = *std::max_element(rank_tokens.begin(), rank_tokens.end());
  step_lb_.push_back(static_cast<double>(slowest) * shape_.rank_count / static_cast<double>(sum));
}

ExpertArm Arm::result() const {
  ExpertArm arm;
  std::vector<double> sorted = step_lb_;
  std::sort(sorted.begin(), sorted.end());
  const auto steps = static_cast<double>(sorted.size());
  arm.moe_lb = std::accumulate(sorted.begin(), sorted.end(), 0.0) / steps;
  arm.moe_lb_p99 = sorted[static_cast<std::size_t>(0.99 * (steps - 1.0))];
  if (!promised_.empty()) {
    arm.planned_lb = std::accumulate(promised_.begin(), promised_.end(), 0.0) /
                     static_cast<double>(promised_.size());
  }
  arm.moved_slots = moved_slots_;
  return arm;
}

/// The tokens of steps, and their window.
class Traffic {
 public:
  Traffic(const ExpertScenario& scenario, std::uint64_t seed)
      : scenario_(scenario),
        popularity_(scenario.expert_count, scenario.zipf_exponent, scenario.correlation_steps,
                    2 * seed),
        sampler_(scenario.expert_count, scenario.experts_per_token, 2 * seed + 1),
        counts_(at(scenario.rank_count) * at(scenario.expert_count)),
        window_(at(scenario.expert_count), 0.0) {
    sampler_.set_weights(popularity_.weights());
  }

  const std::vector<std::uint32_t>& next_step(std::uint64_t step) {
    const int change_steps = std::max(1, scenario_.settings.interval_steps / kChangesPerInterval);
    if (step > 0 && step % static_cast<std::uint64_t>(change_steps) == 0) {
      popularity_.advance(change_steps);
      sampler_.set_weights(popularity_.weights());
    }
    std::fill(counts_.begin(), counts_.end(), 0);
    for (std::size_t rank = 0; rank < at(scenario_.rank_count); ++rank) {
      sampler_.draw(scenario_.tokens_per_rank, &counts_[rank * window_.size()]);
    }
    if (is_counted(scenario_.settings, step)) {
      for (std::size_t i = 0; i < counts_.size(); ++i) window_[i % window_.size()] += counts_[i];
    }
    return counts_;
  }

  controller::placement::ExpertLoads take_window() {
    std::vector<double> taken(window_.size(), 0.0);
    taken.swap(window_);
    return {1, scenario_.expert_count, std::move(taken)};
  }

 private:
  const ExpertScenario& scenario_;
  DriftingPopularity popularity_;
  TokenSampler sampler_;
  std::vector<std::uint32_t> counts_;  // [source rank, expert]
  std::vector<double> window_;
};

absl::Status plan_plain(const ExpertShape& shape, const controller::placement::ExpertLoads& loads,
                        Arm& arm) {
  Placement planned{1, shape.rank_count, shape.slots_per_rank, {}};
  ASSIGN_OR_RETURN(planned.expert_of,
                   controller::placement::plain_plan(loads.counts,
                                                     {shape.slot_count(), 1, 1, shape.rank_count}));
  arm.add_plan(
      controller::placement::imbalance_of(loads.counts, planned.expert_of, shape.rank_count),
      moved_slots(arm.placement(), planned));
  arm.place(std::move(planned));
  return absl::OkStatus();
}

absl::Status plan_ours(const ExpertShape& shape, const PlannerSettings& settings,
                       const controller::placement::ExpertLoads& loads, Arm& arm) {
  ASSIGN_OR_RETURN(const controller::placement::Plan plan,
                   plan_experts(shape, settings, loads, arm.placement()));
  arm.add_plan(plan.layers.front().imbalance_after, plan.move_count());
  arm.place(plan.placement());
  return absl::OkStatus();
}

/// Intervals within which loads forget what they were.
constexpr double kSlowDrift = 1000.0;

constexpr ExpertScenario prefill(int ranks) {
  return {384, 6, ranks, kPrefillSettings, 8192, 0.8, kSlowDrift * kPrefillSettings.interval_steps,
          10};
}

constexpr std::array<NamedExpertScenario, 3> kScenarios = {{
    {"prefill-ep2", prefill(2)},
    {"prefill-ep4", prefill(4)},
    {"decode-ep64",
     {384, 6, 64, kDecodeSettings, 256, 0.8, kSlowDrift* kDecodeSettings.interval_steps, 4}},
}};

}  // namespace

absl::StatusOr<ExpertReport> simulate_experts(const ExpertScenario& scenario, std::uint64_t seed) {
  RETURN_IF_ERROR(validate(scenario));
  const PlannerSettings& settings = scenario.settings;
  ASSIGN_OR_RETURN(const int slots,
                   controller::placement::slots_per_rank(scenario.expert_count, scenario.rank_count,
                                                         settings.redundant_per_rank, kMaxCount));
  const ExpertShape shape{1, scenario.expert_count, scenario.rank_count, slots};
  Traffic traffic(scenario, seed);
  Arm identity(shape, identity_placement(shape));
  Arm plain(shape, identity_placement(shape));
  Arm ours(shape, identity_placement(shape));
  const auto interval = static_cast<std::uint64_t>(settings.interval_steps);
  const std::uint64_t steps =
      interval * (static_cast<std::uint64_t>(scenario.measured_intervals) + 1);
  for (std::uint64_t step = 0; step < steps; ++step) {
    const std::vector<std::uint32_t>& counts = traffic.next_step(step);
    if (step >= interval) {
      for (Arm* arm : {&identity, &plain, &ours}) arm->add_step(counts);
    }
    if (!is_due(settings, step) || step + 1 == steps) continue;
    const controller::placement::ExpertLoads loads = traffic.take_window();
    RETURN_IF_ERROR(plan_plain(shape, loads, plain));
    RETURN_IF_ERROR(plan_ours(shape, settings, loads, ours));
  }
  return ExpertReport{static_cast<std::int64_t>(steps - interval),
                      shape.slot_count(),
                      scenario.measured_intervals - 1,
                      identity.result(),
                      plain.result(),
                      ours.result()};
}

std::span<const NamedExpertScenario> expert_scenarios() { return kScenarios; }

std::string summary(const NamedExpertScenario& named, const ExpertReport& report) {
  std::string line;
  line += named.name;
  const auto add = [&](const char* name, const ExpertArm& arm) {
    std::array<char, 160> text{};
    const double moved = report.successive_plans == 0
                             ? 0.0
                             : static_cast<double>(arm.moved_slots) / report.successive_plans;
    std::snprintf(text.data(), text.size(), "; %s %.4f (p99 %.4f, planned %.4f, %.1f slots a plan)",
                  name, arm.moe_lb, arm.moe_lb_p99, arm.planned_lb, moved);
    line += text.data();
  };
  add("identity", report.identity);
  add("plain", report.plain);
  add("ours", report.ours);
  line += str_cat("; ", report.measured_steps, " steps, ", report.slots, " slots");
  return line;
}

}  // namespace millrace::sim
