#include "dataplane/cost/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "common/str_cat.h"

namespace millrace::dataplane::cost {
namespace {

/// The definition, looked for one by one from below.
std::int64_t largest_by_trying(const CostModel& model, std::int64_t rows, std::int64_t cached,
                               double budget) {
  std::int64_t best = 0;
  for (std::int64_t q = 1; q <= rows && chunk_cost_ns(model, q, cached) <= budget; ++q) best = q;
  return best;
}

/// A coefficient of any size, often 0.
double coefficient(std::mt19937_64& random, double low_exponent, double high_exponent) {
  if (random() % 5 == 0) return 0;
  return std::pow(10, std::uniform_real_distribution(low_exponent, high_exponent)(random));
}

TEST(LargestChunk, IsTheLargestThatFitsForRandomModelsAndBudgets) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 100'000; ++i) {
    const CostModel model{coefficient(random, -12, 3), coefficient(random, -12, 2),
                          coefficient(random, -6, 6), coefficient(random, -3, 9)};
    const auto rows = static_cast<std::int64_t>(random() % 200 + 1);
    const auto cached = static_cast<std::int64_t>(random() % 2 == 0 ? 0 : random() % 1'000'000);
    // Budgets around the cost of some chunk, hit exactly or missed by a hair, and arbitrary ones.
    double budget = chunk_cost_ns(model, static_cast<std::int64_t>(random() % 250), cached);
    if (random() % 3 == 0) budget = std::nextafter(budget, 0);
    if (random() % 3 == 0) budget = coefficient(random, 0, 10);
    ASSERT_EQ(largest_chunk(model, rows, cached, budget),
              largest_by_trying(model, rows, cached, budget))
        << str_cat(model.quadratic, " ", model.cross, " ", model.linear, " ", model.fixed, " rows ",
                   rows, " cached ", cached, " budget ", budget);
  }
}

TEST(LargestChunk, FindsItsWayInLongPrompts) {
  std::mt19937_64 random(8);
  for (int i = 0; i < 20'000; ++i) {
    const CostModel model{coefficient(random, -6, 1), coefficient(random, -6, 1),
                          coefficient(random, 0, 6), coefficient(random, 0, 9)};
    const auto rows = static_cast<std::int64_t>(random() % 2'000'000 + 1);
    const auto cached = static_cast<std::int64_t>(random() % 2'000'000);
    const double budget = coefficient(random, 3, 13);
    const std::int64_t q = largest_chunk(model, rows, cached, budget);
    ASSERT_GE(q, 0);
    ASSERT_LE(q, rows);
    if (q > 0) {
      ASSERT_LE(chunk_cost_ns(model, q, cached), budget);
    }
    if (q < rows) {
      ASSERT_GT(chunk_cost_ns(model, q + 1, cached), budget);
    }
  }
}

TEST(LargestChunk, OfNothingOrWithinNothingIsNothing) {
  const CostModel model{0, 0, 10, 100};
  EXPECT_EQ(largest_chunk(model, 0, 0, 1e9), 0);
  EXPECT_EQ(largest_chunk(model, 5, 0, 0), 0);
  EXPECT_EQ(largest_chunk(model, 5, 0, -1), 0);
  EXPECT_EQ(largest_chunk(model, 5, 0, 109), 0);
  EXPECT_EQ(largest_chunk(model, 5, 0, 110), 1);
  EXPECT_EQ(largest_chunk(model, 5, 0, 1e300), 5);
}

TEST(ChunkCost, OfTwoChunksIsThatOfOneWhenCrossIsTwiceQuadratic) {
  // Causal attention to what came before: q c + q²/2, up to a factor.
  const CostModel model{0.5, 1.0, 30, 0};
  EXPECT_DOUBLE_EQ(chunk_cost_ns(model, 300, 1000) + chunk_cost_ns(model, 212, 1300),
                   chunk_cost_ns(model, 512, 1000));
}

TEST(Quota, IsAtLeastOneAndSaturates) {
  EXPECT_EQ(quota_ns({0, 0, 1e-9, 0}, 1, 0), 1);
  EXPECT_EQ(quota_ns({0, 0, 2, 1}, 0, 100), 0);
  EXPECT_EQ(quota_ns({0, 0, 2, 0.5}, 3, 0), 7);
  EXPECT_EQ(quota_ns({1e300, 0, 0, 0}, 1 << 20, 0), std::int64_t{1} << 62);
}

TEST(CheckCostModel, NamesWhatIsWrong) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto message = [](const absl::Status& status) { return std::string(message_of(status)); };
  EXPECT_NE(message(check(CostModel{nan, 0, 1, 0})).find("quadratic"), std::string::npos);
  EXPECT_NE(message(check(CostModel{0, -1, 1, 0})).find("cross = -1"), std::string::npos);
  EXPECT_NE(message(check(CostModel{0, 0, HUGE_VAL, 0})).find("linear"), std::string::npos);
  EXPECT_NE(message(check(CostModel{})).find("every coefficient is 0"), std::string::npos);
  EXPECT_TRUE(check(CostModel{0, 0, 0, 1}).ok());
  EXPECT_NE(message(check(DecodeCostModel{1, 1, -2})).find("per_kv_token"), std::string::npos);
  EXPECT_DOUBLE_EQ(decode_step_ns({100, 10, 0.5}, 3, 40), 150);
}

}  // namespace
}  // namespace millrace::dataplane::cost
