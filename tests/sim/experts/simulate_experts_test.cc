#include "tests/sim/experts/simulate_experts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "tests/sim/experts/expert_load.h"

namespace millrace::sim {
namespace {

/// The same on fewer steps, as far apart in time as the real ones.
ExpertScenario shortened(ExpertScenario scenario, int factor) {
  scenario.settings.window_steps /= factor;
  scenario.settings.interval_steps /= factor;
  scenario.correlation_steps /= factor;
  scenario.measured_intervals = 4;
  return scenario;
}

/// MILLRACE_EXPERT_SEEDS: so many seeds of the scenarios at full length (minutes).
/// MILLRACE_EXPERT_DRIFT: drift so many times as fast.
TEST(SimulateExperts, PlansBringRanksTogetherAndOursMovesLess) {
  const char* const full = std::getenv("MILLRACE_EXPERT_SEEDS");
  const char* const drift = std::getenv("MILLRACE_EXPERT_DRIFT");
  const std::uint64_t seeds = full == nullptr ? 1 : std::strtoull(full, nullptr, 10);
  for (NamedExpertScenario named : expert_scenarios()) {
    if (full == nullptr) {
      named.scenario = shortened(named.scenario, named.scenario.rank_count > 8 ? 200 : 50);
    }
    if (drift != nullptr) named.scenario.correlation_steps /= std::strtod(drift, nullptr);
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      const absl::StatusOr<ExpertReport> report = simulate_experts(named.scenario, seed);
      ASSERT_TRUE(report.ok()) << report.status();
      std::cout << "seed " << seed << ": " << summary(named, *report) << "\n";
      EXPECT_LT(report->ours.moe_lb, drift == nullptr ? 1.15 : 1.5);
      EXPECT_LE(report->ours.moe_lb, report->plain.moe_lb + 0.01);
      EXPECT_LT(report->ours.moe_lb - 1.0, 0.8 * (report->identity.moe_lb - 1.0));
      EXPECT_LE(report->ours.moved_slots, report->plain.moved_slots / 2);
      EXPECT_GT(report->plain.moved_slots, 0);
    }
  }
}

TEST(SimulateExperts, EqualSeedsGiveEqualReports) {
  const ExpertScenario scenario = shortened(expert_scenarios()[0].scenario, 100);
  const ExpertReport one = *simulate_experts(scenario, 5);
  const ExpertReport same = *simulate_experts(scenario, 5);
  const ExpertReport other = *simulate_experts(scenario, 6);
  EXPECT_EQ(one.ours.moe_lb, same.ours.moe_lb);
  EXPECT_EQ(one.plain.moved_slots, same.plain.moved_slots);
  EXPECT_NE(one.ours.moe_lb, other.ours.moe_lb);
}

TEST(SimulateExperts, NamesAnImpossibleValue) {
  const ExpertScenario fine = expert_scenarios()[0].scenario;
  const auto message = [](const ExpertScenario& scenario) {
    return std::string(simulate_experts(scenario, 1).status().message());
  };
  ExpertScenario wrong = fine;
  wrong.tokens_per_rank = 0;
  EXPECT_EQ(message(wrong), "tokens_per_rank is 0; it must be from 1 to 65536");
  wrong = fine;
  wrong.experts_per_token = 17;
  EXPECT_EQ(message(wrong), "experts_per_token is 17; it must be from 1 to 16");
  wrong = fine;
  wrong.correlation_steps = 0.0;
  EXPECT_EQ(message(wrong), "correlation_steps is 0; it must be from 1 to 1e15");
  wrong = fine;
  wrong.zipf_exponent = -1.0;
  EXPECT_EQ(message(wrong), "zipf_exponent is -1; it must be from 0 to 4");
}

TEST(TokenSampler, DrawsDifferentExpertsInProportionToTheirWeights) {
  TokenSampler one(4, 1, 3);
  one.set_weights({1, 2, 3, 4});
  std::vector<std::uint32_t> counts(4, 0);
  one.draw(100'000, counts.data());
  for (std::size_t e = 0; e < 4; ++e)
    EXPECT_NEAR(counts[e], 10'000.0 * static_cast<double>(e + 1), 600);
  TokenSampler all(4, 4, 3);
  all.set_weights({1, 2, 3, 4});
  counts.assign(4, 0);
  all.draw(1000, counts.data());
  EXPECT_EQ(counts, (std::vector<std::uint32_t>{1000, 1000, 1000, 1000}));
}

TEST(DriftingPopularity, ForgetsWithinItsCorrelationTime) {
  DriftingPopularity popularity(384, 0.8, 1000, 7);
  const std::vector<double> start = popularity.weights();
  const auto share_of_first_hot = [&] {  // what the hottest tenth of the start still has
    double hot = 0.0;
    double all = 0.0;
    for (std::size_t e = 0; e < start.size(); ++e) {
      all += popularity.weights()[e];
      if (start[e] > 0.062) hot += popularity.weights()[e];
    }
    return hot / all;
  };
  const double at_first = share_of_first_hot();
  popularity.advance(10);
  EXPECT_GT(share_of_first_hot(), 0.8 * at_first);
  popularity.advance(10'000);
  EXPECT_LT(share_of_first_hot(), 0.5 * at_first);
}

}  // namespace
}  // namespace millrace::sim
