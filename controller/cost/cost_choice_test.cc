#include "controller/cost/cost_choice.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace::controller::cost {
namespace {

using dataplane::cost::Coefficient;
using dataplane::cost::CostModel;

TEST(TypicalCost, IsTheLowerMedianByTheReferenceChunk) {
  EXPECT_EQ(typical_cost({}), std::nullopt);
  const CostModel fast = {.linear = 100};
  const CostModel usual = {.cross = 0.01, .linear = 120};
  const CostModel slow = {.fixed = 1e9};
  EXPECT_EQ(typical_cost(std::vector{slow}), 0U);
  EXPECT_EQ(typical_cost(std::vector{slow, fast}), 1U);
  EXPECT_EQ(typical_cost(std::vector{slow, fast, usual}), 2U);
  EXPECT_EQ(typical_cost(std::vector{slow, fast, usual, slow}), 2U);
}

TEST(TypicalCost, EqualTimesGoToTheEarlier) {
  const CostModel one = {.linear = 100};
  EXPECT_EQ(typical_cost(std::vector{one, one, one, one}), 1U);
}

TEST(WorthPublishing, FivePercentAtAnyShape) {
  const CostModel published = {.quadratic = 0.1, .cross = 0.2, .linear = 1000, .fixed = 1e6};
  EXPECT_FALSE(is_worth_publishing(published, published));
  for (const double factor : {0.94, 1.06}) {
    CostModel next = published;
    next.fixed *= factor;
    // 128 rows cost 1.13 ms, of which 1 ms is fixed.
    EXPECT_TRUE(is_worth_publishing(published, next)) << factor;
    next = published;
    next.cross *= factor;
    // 2,048 rows behind 131,072 cost 57 ms, of which 54 are cross.
    EXPECT_TRUE(is_worth_publishing(published, next)) << factor;
  }
  CostModel next = published;
  for (const Coefficient& c : dataplane::cost::kCoefficients) next.*c.value *= 1.04;
  EXPECT_FALSE(is_worth_publishing(published, next));
  // All of 128 rows are of the tail.
  EXPECT_TRUE(is_worth_publishing({.linear = 10, .tail = 1000}, {.linear = 10, .tail = 1060}));
}

}  // namespace
}  // namespace millrace::controller::cost
