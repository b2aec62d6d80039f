#include "dataplane/scheduler/prefill_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace millrace::dataplane::scheduler {
namespace {

using cost::CostModel;
using ::testing::ElementsAre;

/// 1 ms a row.
const CostModel kLinear{.linear = 1e6};

/// A request that has so many rows to run behind cached ones, all of them of its prompt.
QueuedPrefill queued(std::int64_t rows_left, std::int64_t cached = 0, bool is_ready = true) {
  return {rows_left, cached, cached + rows_left, is_ready};
}

std::vector<PrefillChunk> plan(const CostModel& model, const PrefillStepLimits& limits,
                               const std::vector<QueuedPrefill>& queue) {
  return plan_prefill_step(model, limits, queue);
}

TEST(PrefillStep, TakesRequestsInOrderAndCutsTheFirstThatDoesNotFit) {
  EXPECT_THAT(plan(kLinear, {}, {queued(100), queued(150), queued(200), queued(1)}),
              ElementsAre(PrefillChunk{0, 100, 100e6}, PrefillChunk{1, 150, 150e6},
                          PrefillChunk{2, 50, 50e6}));
}

TEST(PrefillStep, CountsWhatLooksBack) {
  const CostModel model{.cross = 1e3, .linear = 1e6};
  EXPECT_THAT(plan(model, {}, {queued(1000, 1000)}), ElementsAre(PrefillChunk{0, 150, 300e6}));
}

TEST(PrefillStep, CutsWhereTheDecoderLayersBegin) {
  // The last 128 rows of a prompt cost ten times as much; what comes after it, too.
  const CostModel model{.linear = 1e6, .tail = 9e6};
  EXPECT_THAT(plan(model, {}, {queued(250, 1000)}),
              ElementsAre(PrefillChunk{0, 139, 122e6 + 17 * 10e6}));
  EXPECT_THAT(plan(model, {}, {{250, 1000, 1150, true}}),
              ElementsAre(PrefillChunk{0, 49, 22e6 + 27 * 10e6}));
}

TEST(PrefillStep, PassesByWhatIsNotReady) {
  EXPECT_THAT(plan(kLinear, {}, {queued(400, 0, false), queued(20), queued(9, 0, false)}),
              ElementsAre(PrefillChunk{1, 20, 20e6}));
  EXPECT_TRUE(plan(kLinear, {}, {queued(400, 0, false)}).empty());
  EXPECT_TRUE(plan(kLinear, {}, {}).empty());
}

TEST(PrefillStep, LetsOthersInBesideAPromptThatReachedItsShare) {
  const PrefillStepLimits half{.share_cap = 0.5};
  EXPECT_THAT(plan(kLinear, half, {queued(9000), queued(30), queued(8000)}),
              ElementsAre(PrefillChunk{0, 150, 150e6}, PrefillChunk{1, 30, 30e6},
                          PrefillChunk{2, 120, 120e6}));
  // What nobody else wants is not left idle.
  EXPECT_THAT(plan(kLinear, half, {queued(9000), queued(30)}),
              ElementsAre(PrefillChunk{0, 270, 270e6}, PrefillChunk{1, 30, 30e6}));
}

TEST(PrefillStep, RunsABlockOfTheHeadWhenNothingFits) {
  const CostModel dear{.linear = 1e9};
  EXPECT_THAT(plan(dear, {}, {queued(5, 0, false), queued(1000), queued(1)}),
              ElementsAre(PrefillChunk{1, 128, 128e9}));
  EXPECT_THAT(plan(dear, {.max_rows = 7}, {queued(1000)}), ElementsAre(PrefillChunk{0, 7, 7e9}));
  EXPECT_THAT(plan(dear, {}, {queued(3)}), ElementsAre(PrefillChunk{0, 3, 3e9}));
}

TEST(PrefillStep, HasNoMoreRowsThanAllowed) {
  EXPECT_THAT(plan(kLinear, {.max_rows = 30}, {queued(10), queued(50), queued(1)}),
              ElementsAre(PrefillChunk{0, 10, 10e6}, PrefillChunk{1, 20, 20e6}));
}

TEST(PrefillStep, RefusesLimitsWithoutMeaning) {
  EXPECT_TRUE(check(PrefillStepLimits{}).ok());
  EXPECT_FALSE(check(PrefillStepLimits{.budget_ns = 0}).ok());
  EXPECT_FALSE(check(PrefillStepLimits{.budget_ns = std::nan("")}).ok());
  EXPECT_FALSE(check(PrefillStepLimits{.share_cap = 0}).ok());
  EXPECT_FALSE(check(PrefillStepLimits{.share_cap = 1.5}).ok());
  EXPECT_FALSE(check(PrefillStepLimits{.max_rows = 0}).ok());
}

TEST(PrefillStep, EveryPlanMakesProgressWithinItsBudget) {
  std::mt19937_64 random(11);
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  for (int round = 0; round < 5'000; ++round) {
    const CostModel model{.quadratic = static_cast<double>(below(3)),
                          .cross = static_cast<double>(below(3)),
                          .linear = static_cast<double>(1 + below(100'000)),
                          .fixed = static_cast<double>(below(1'000'000)),
                          .tail = static_cast<double>(below(100'000)),
                          .tail_cross = static_cast<double>(below(3))};
    const PrefillStepLimits limits{.budget_ns = static_cast<double>(1 + below(50'000'000)),
                                   .share_cap = static_cast<double>(1 + below(4)) / 4,
                                   .max_rows = 1 + below(4000)};
    std::vector<QueuedPrefill> queue(static_cast<std::size_t>(below(6)));
    bool is_any_ready = false;
    for (QueuedPrefill& request : queue) {
      request = queued(1 + below(5000), below(100'000), below(4) > 0);
      request.prompt_tokens -= below(3) * below(request.rows_left);  // the rest was delivered
      is_any_ready = is_any_ready || request.is_ready;
    }
    const auto chunks = plan(model, limits, queue);
    ASSERT_EQ(!chunks.empty(), is_any_ready) << round;
    double cost = 0;
    std::int64_t rows = 0;
    std::size_t next = 0;
    for (const PrefillChunk& chunk : chunks) {
      ASSERT_GE(chunk.index, next) << round;
      next = chunk.index + 1;
      ASSERT_TRUE(queue[chunk.index].is_ready) << round;
      ASSERT_GT(chunk.rows, 0) << round;
      ASSERT_LE(chunk.rows, queue[chunk.index].rows_left) << round;
      const QueuedPrefill& of = queue[chunk.index];
      ASSERT_EQ(chunk.cost_ns,
                chunk_cost_ns(model, cost::chunk_at(chunk.rows, of.cached, of.prompt_tokens)));
      cost += chunk.cost_ns;
      rows += chunk.rows;
    }
    ASSERT_LE(rows, limits.max_rows) << round;
    const bool is_forced = chunks.size() == 1 && chunks[0].rows <= kLeastChunkRows;
    ASSERT_TRUE(cost <= limits.budget_ns * (1 + 1e-12) || is_forced) << round;
  }
}

}  // namespace
}  // namespace millrace::dataplane::scheduler
