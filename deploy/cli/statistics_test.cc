#include "deploy/cli/statistics.h"

#include <gtest/gtest.h>

#include <random>

namespace millrace::deploy::cli {
namespace {

TEST(Percentile, IsTheNearestRank) {
  // The worked example of "nearest rank" in many textbooks: 15, 20, 35, 40, 50.
  const std::vector<double> values = {15, 20, 35, 40, 50};
  EXPECT_EQ(percentile(values, 0.05), 15);
  EXPECT_EQ(percentile(values, 0.30), 20);
  EXPECT_EQ(percentile(values, 0.40), 20);
  EXPECT_EQ(percentile(values, 0.50), 35);
  EXPECT_EQ(percentile(values, 1.00), 50);
}

TEST(Percentile, AgreesWithItsDefinitionOnRandomValues) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> values(1 + random() % 40);
    for (double& value : values) value = static_cast<double>(random() % 20);
    std::sort(values.begin(), values.end());
    for (double fraction : {0.01, 0.5, 0.9, 0.99, 1.0}) {
      const double answer = percentile(values, fraction);
      const auto share_up_to = [&](double limit) {
        const auto count = std::count_if(values.begin(), values.end(),
                                         [&](double value) { return value <= limit; });
        return static_cast<double>(count) / static_cast<double>(values.size());
      };
      EXPECT_GE(share_up_to(answer), fraction - 1e-9);
      for (double smaller : values) {
        if (smaller < answer) {
          EXPECT_LT(share_up_to(smaller), fraction - 1e-12);
        }
      }
    }
  }
}

TEST(Summarize, OfNothingIsAllZero) {
  const Summary summary = summarize({});
  EXPECT_EQ(summary.count, 0);
  EXPECT_EQ(summary.p99, 0);
}

TEST(Summarize, TakesValuesInAnyOrder) {
  const Summary summary = summarize({3, 1, 2});
  EXPECT_EQ(summary.count, 3);
  EXPECT_DOUBLE_EQ(summary.mean, 2);
  EXPECT_EQ(summary.p50, 2);
  EXPECT_EQ(summary.max, 3);
}

// Published values: Newcombe, "Two-sided confidence intervals for the single proportion",
// Statistics in Medicine 17 (1998), table I, method 3 (score, no continuity correction).
TEST(WilsonInterval, AgreesWithNewcombesTable) {
  const auto expect = [](int successes, int total, double low, double high) {
    const Interval interval = wilson_interval(successes, total);
    EXPECT_NEAR(interval.low, low, 5e-5) << successes << "/" << total;
    EXPECT_NEAR(interval.high, high, 5e-5) << successes << "/" << total;
  };
  expect(81, 263, 0.2553, 0.3662);
  expect(15, 148, 0.0624, 0.1605);
  expect(0, 20, 0.0000, 0.1611);
  expect(1, 29, 0.0061, 0.1718);
}

TEST(WilsonInterval, ReachesTheEndsExactly) {
  for (int total = 1; total < 50; ++total) {
    EXPECT_EQ(wilson_interval(0, total).low, 0);
    EXPECT_EQ(wilson_interval(total, total).high, 1);
    EXPECT_LT(wilson_interval(total, total).low, 1);
  }
}

TEST(WilsonInterval, OfNothingSaysNothing) {
  EXPECT_EQ(wilson_interval(0, 0).low, 0);
  EXPECT_EQ(wilson_interval(0, 0).high, 1);
}

}  // namespace
}  // namespace millrace::deploy::cli
