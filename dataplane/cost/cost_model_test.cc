#include "dataplane/cost/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "common/str_cat.h"

namespace millrace::dataplane::cost {
namespace {

/// The definition, looked for one by one from below.
std::int64_t largest_by_trying(const CostModel& model, std::int64_t most, std::int64_t cached,
                               std::int64_t prompt_tokens, double budget) {
  std::int64_t best = 0;
  for (std::int64_t q = 1; q <= most; ++q) {
    if (chunk_cost_ns(model, chunk_at(q, cached, prompt_tokens)) > budget) break;
    best = q;
  }
  return best;
}

/// A coefficient of any size, often 0.
double coefficient(std::mt19937_64& random, double low_exponent, double high_exponent) {
  if (random() % 5 == 0) return 0;
  return std::pow(10, std::uniform_real_distribution(low_exponent, high_exponent)(random));
}

CostModel random_model(std::mt19937_64& random) {
  return {.quadratic = coefficient(random, -12, 3),
          .cross = coefficient(random, -12, 2),
          .linear = coefficient(random, -6, 6),
          .fixed = coefficient(random, -3, 9),
          .tail = coefficient(random, -6, 6),
          .tail_cross = coefficient(random, -12, 2)};
}

std::string to_string(const CostModel& model) {
  std::string text;
  for (const Coefficient& c : kCoefficients) text += str_cat(c.name, " ", model.*c.value, " ");
  return text;
}

TEST(ChunkAt, KnowsWhatOfItPassesTheDecoderLayers) {
  // Row by row: position p does from 128 before the end of the prompt on, whatever follows.
  for (const std::int64_t prompt : {1, 127, 128, 129, 200, 400}) {
    for (const std::int64_t cached : {0, 1, 72, 73, 200, 390}) {
      for (std::int64_t rows = 0; rows <= 300; ++rows) {
        std::int64_t tail = 0;
        for (std::int64_t p = cached; p < cached + rows; ++p) tail += p >= prompt - 128 ? 1 : 0;
        ASSERT_EQ(chunk_at(rows, cached, prompt).tail, tail)
            << rows << " behind " << cached << " of " << prompt;
      }
    }
  }
}

/// Where a prompt ends that has up to 400 rows to run behind cached ones; some have delivered
/// tokens after it.
std::int64_t random_prompt(std::mt19937_64& random, std::int64_t cached) {
  return cached + static_cast<std::int64_t>(random() % 400) + 1;
}

TEST(LargestChunk, IsTheLargestThatFitsForRandomModelsAndBudgets) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 100'000; ++i) {
    const CostModel model = random_model(random);
    const auto most = static_cast<std::int64_t>(random() % 200 + 1);
    const auto cached = static_cast<std::int64_t>(random() % 2 == 0 ? 0 : random() % 1'000'000);
    const std::int64_t prompt = random_prompt(random, cached);
    // Budgets around the cost of some chunk, hit exactly or missed by a hair, and arbitrary ones.
    const auto aim = static_cast<std::int64_t>(random() % 250);
    double budget = chunk_cost_ns(model, chunk_at(aim, cached, prompt));
    if (random() % 3 == 0) budget = std::nextafter(budget, 0);
    if (random() % 3 == 0) budget = coefficient(random, 0, 10);
    ASSERT_EQ(largest_chunk(model, most, cached, prompt, budget),
              largest_by_trying(model, most, cached, prompt, budget))
        << str_cat(to_string(model), "most ", most, " behind ", cached, " of ", prompt, " budget ",
                   budget);
  }
}

TEST(LargestChunk, FindsItsWayInLongPrompts) {
  std::mt19937_64 random(8);
  for (int i = 0; i < 20'000; ++i) {
    const CostModel model = random_model(random);
    const auto most = static_cast<std::int64_t>(random() % 2'000'000 + 1);
    const auto cached = static_cast<std::int64_t>(random() % 2'000'000);
    const auto prompt = cached + static_cast<std::int64_t>(random() % 2'000'000 + 1);
    const double budget = coefficient(random, 3, 13);
    const std::int64_t q = largest_chunk(model, most, cached, prompt, budget);
    ASSERT_GE(q, 0);
    ASSERT_LE(q, most);
    if (q > 0) {
      ASSERT_LE(chunk_cost_ns(model, chunk_at(q, cached, prompt)), budget);
    }
    if (q < most) {
      ASSERT_GT(chunk_cost_ns(model, chunk_at(q + 1, cached, prompt)), budget);
    }
  }
}

TEST(LargestChunk, OfNothingOrWithinNothingIsNothing) {
  const CostModel model{.linear = 10, .fixed = 100};
  EXPECT_EQ(largest_chunk(model, 0, 0, 9, 1e9), 0);
  EXPECT_EQ(largest_chunk(model, -5, 0, 9, 1e9), 0);
  EXPECT_EQ(largest_chunk(model, 5, 0, 9, 0), 0);
  EXPECT_EQ(largest_chunk(model, 5, 0, 9, -1), 0);
  EXPECT_EQ(largest_chunk(model, 5, 0, 9, 109), 0);
  EXPECT_EQ(largest_chunk(model, 5, 0, 9, 110), 1);
  EXPECT_EQ(largest_chunk(model, 5, 0, 9, 1e300), 5);
}

TEST(LargestChunk, StopsBeforeATailThatDoesNotFit) {
  const CostModel model{.linear = 1, .tail = 100};
  EXPECT_EQ(largest_chunk(model, 500, 0, 500, 372), 372);
  EXPECT_EQ(largest_chunk(model, 500, 0, 500, 372 + 100), 372);
  EXPECT_EQ(largest_chunk(model, 500, 0, 500, 372 + 101), 373);
  EXPECT_EQ(largest_chunk(model, 500, 0, 500, 500 + 128 * 100), 500);
}

TEST(ChunkCost, IsTheFormula) {
  const CostModel model{
      .quadratic = 2, .cross = 3, .linear = 5, .fixed = 7, .tail = 11, .tail_cross = 13};
  const Chunk chunk{.rows = 10, .cached = 100, .tail = 4};
  EXPECT_DOUBLE_EQ(chunk_cost_ns(model, chunk),
                   2 * 10 * 10 + 3 * 10 * 100 + 5 * 10 + 7 + 11 * 4 + 13 * 4 * (100 + 10));
  EXPECT_EQ(chunk_cost_ns(model, {.rows = 0, .cached = 100}), 0);
}

TEST(ChunkCost, OfTwoChunksIsThatOfOneWhenCrossIsTwiceQuadratic) {
  // Causal attention to what came before: q c + q²/2, up to a factor. The tail lies in the
  // second chunk.
  const CostModel model{.quadratic = 0.5, .cross = 1.0, .linear = 30, .tail = 70};
  EXPECT_DOUBLE_EQ(chunk_cost_ns(model, chunk_at(300, 1000, 1512)) +
                       chunk_cost_ns(model, chunk_at(212, 1300, 1512)),
                   chunk_cost_ns(model, chunk_at(512, 1000, 1512)));
}

TEST(Quota, IsAtLeastOneAndSaturates) {
  EXPECT_EQ(quota_ns({.linear = 1e-9}, {.rows = 1}), 1);
  EXPECT_EQ(quota_ns({.linear = 2, .fixed = 1}, {.rows = 0, .cached = 100}), 0);
  EXPECT_EQ(quota_ns({.linear = 2, .fixed = 0.5}, {.rows = 3}), 7);
  EXPECT_EQ(quota_ns({.linear = 1, .tail = 1}, chunk_at(1000, 5, 1005)), 1128);
  EXPECT_EQ(quota_ns({.quadratic = 1e300}, {.rows = 1 << 20}), std::int64_t{1} << 62);
}

TEST(CheckCostModel, NamesWhatIsWrong) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto message = [](const absl::Status& status) { return std::string(message_of(status)); };
  EXPECT_NE(message(check(CostModel{nan, 0, 1, 0})).find("quadratic"), std::string::npos);
  EXPECT_NE(message(check(CostModel{0, -1, 1, 0})).find("cross = -1"), std::string::npos);
  EXPECT_NE(message(check(CostModel{0, 0, HUGE_VAL, 0})).find("linear"), std::string::npos);
  EXPECT_NE(message(check(CostModel{.fixed = 1, .tail = -1})).find("tail = -1"), std::string::npos);
  EXPECT_NE(message(check(CostModel{.fixed = 1, .tail_cross = nan})).find("tail_cross"),
            std::string::npos);
  EXPECT_NE(message(check(CostModel{})).find("every coefficient is 0"), std::string::npos);
  EXPECT_TRUE(check(CostModel{0, 0, 0, 1}).ok());
  EXPECT_NE(message(check(DecodeCostModel{1, 1, -2})).find("per_kv_token"), std::string::npos);
  EXPECT_DOUBLE_EQ(decode_step_ns({100, 10, 0.5}, 3, 40), 150);
}

}  // namespace
}  // namespace millrace::dataplane::cost
