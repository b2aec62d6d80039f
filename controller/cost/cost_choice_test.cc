#include "controller/cost/cost_choice.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace::controller::cost {
namespace {

using api::admin::PrefillCost;

TEST(TypicalCost, IsTheLowerMedianByTheReferenceChunk) {
  EXPECT_EQ(typical_cost({}), std::nullopt);
  const PrefillCost fast = {.linear_ns = 100};
  const PrefillCost usual = {.cross_ns = 0.01, .linear_ns = 120};
  const PrefillCost slow = {.fixed_ns = 1e9};
  EXPECT_EQ(typical_cost(std::vector{slow}), 0U);
  EXPECT_EQ(typical_cost(std::vector{slow, fast}), 1U);
  EXPECT_EQ(typical_cost(std::vector{slow, fast, usual}), 2U);
  EXPECT_EQ(typical_cost(std::vector{slow, fast, usual, slow}), 2U);
}

TEST(TypicalCost, EqualTimesGoToTheEarlier) {
  const PrefillCost one = {.linear_ns = 100};
  EXPECT_EQ(typical_cost(std::vector{one, one, one, one}), 1U);
}

TEST(WorthPublishing, FivePercentAtAnyShape) {
  const PrefillCost published = {
      .quadratic_ns = 0.1, .cross_ns = 0.2, .linear_ns = 1000, .fixed_ns = 1e6};
  EXPECT_FALSE(is_worth_publishing(published, published));
  for (const double factor : {0.94, 1.06}) {
    PrefillCost next = published;
    next.fixed_ns *= factor;
    // 128 rows cost 1.13 ms, of which 1 ms is fixed.
    EXPECT_TRUE(is_worth_publishing(published, next)) << factor;
    next = published;
    next.cross_ns *= factor;
    // 2,048 rows behind 131,072 cost 57 ms, of which 54 are cross.
    EXPECT_TRUE(is_worth_publishing(published, next)) << factor;
  }
  PrefillCost next = published;
  for (double* term : {&next.quadratic_ns, &next.cross_ns, &next.linear_ns, &next.fixed_ns}) {
    *term *= 1.04;
  }
  EXPECT_FALSE(is_worth_publishing(published, next));
}

}  // namespace
}  // namespace millrace::controller::cost
