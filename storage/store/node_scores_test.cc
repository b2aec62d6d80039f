#include "storage/store/node_scores.h"

#include <gtest/gtest.h>

#include <random>

#include "storage/store/hedge_budget.h"

namespace millrace::storage::store {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

class Scores : public ::testing::Test {
 protected:
  NodeScores scores_{NodeScoreSettings{}};
  TimePoint now_{std::chrono::hours(1)};
};

TEST_F(Scores, AnUnknownNodeHasTheFirstDeadline) {
  EXPECT_EQ(scores_.hedge_deadline("n"), milliseconds(50));
  EXPECT_FALSE(scores_.is_on_probation("n"));
  EXPECT_FALSE(scores_.take_probe("n", now_));
}

TEST_F(Scores, TheDeadlineFollowsWhatANodeTakes) {
  std::mt19937 random(1);
  int late = 0;
  for (int i = 0; i < 4000; ++i) {
    const microseconds latency(8000 + random() % 4000);
    if (i > 200 && latency > scores_.hedge_deadline("n")) ++late;
    scores_.on_answer("n", latency, false);
  }
  EXPECT_LT(late, 4000 / 20);
  EXPECT_GT(scores_.hedge_deadline("n"), milliseconds(10));
  EXPECT_LT(scores_.hedge_deadline("n"), milliseconds(20));
}

TEST_F(Scores, DeadlinesHaveLimits) {
  for (int i = 0; i < 100; ++i) scores_.on_answer("fast", microseconds(10), false);
  EXPECT_EQ(scores_.hedge_deadline("fast"), milliseconds(2));
  for (int i = 0; i < 100; ++i) scores_.on_answer("slow", std::chrono::seconds(9), true);
  EXPECT_EQ(scores_.hedge_deadline("slow"), std::chrono::seconds(1));
}

// A minute of silence leaves no minute in the mean.
TEST_F(Scores, OneVeryLateAnswerCountsAsTwiceTheDeadline) {
  for (int i = 0; i < 100; ++i) scores_.on_answer("n", milliseconds(5), false);
  const auto before = scores_.hedge_deadline("n");
  scores_.on_answer("n", std::chrono::minutes(1), true);
  EXPECT_LT(scores_.hedge_deadline("n"), 4 * before);
}

TEST_F(Scores, AClusterThatSlowsDownIsFollowed) {
  for (int i = 0; i < 100; ++i) scores_.on_answer("n", milliseconds(2), false);
  int late = 0;
  for (int i = 0; i < 100; ++i) {
    const bool is_late = milliseconds(40) > scores_.hedge_deadline("n");
    late += is_late;
    scores_.on_answer("n", milliseconds(40), is_late);
  }
  EXPECT_LT(late, 15);
}

TEST_F(Scores, MissesPutANodeOnProbationAndAProbeBringsItBack) {
  scores_.on_miss("n", now_);
  scores_.on_miss("n", now_);
  EXPECT_FALSE(scores_.is_on_probation("n"));
  scores_.on_answer("n", milliseconds(1), false);
  for (int i = 0; i < 3; ++i) scores_.on_miss("n", now_);
  EXPECT_TRUE(scores_.is_on_probation("n"));
  EXPECT_EQ(scores_.nodes_on_probation(), 1);
  EXPECT_FALSE(scores_.take_probe("n", now_ + milliseconds(999)));
  EXPECT_TRUE(scores_.take_probe("n", now_ + milliseconds(1000)));
  EXPECT_FALSE(scores_.take_probe("n", now_ + milliseconds(1000))) << "one at a time";
  scores_.on_answer("n", milliseconds(500), true);
  EXPECT_TRUE(scores_.is_on_probation("n")) << "an answer out of time proves nothing";
  scores_.on_answer("n", milliseconds(1), false);
  EXPECT_FALSE(scores_.is_on_probation("n"));
}

TEST_F(Scores, ProbationGrowsToItsLimitAndStartsAnew) {
  for (int i = 0; i < 3; ++i) scores_.on_miss("n", now_);
  TimePoint at = now_;
  for (const int seconds : {1, 2, 4, 8, 16, 30, 30}) {
    at += std::chrono::seconds(seconds);
    EXPECT_FALSE(scores_.take_probe("n", at - milliseconds(1)));
    EXPECT_TRUE(scores_.take_probe("n", at)) << seconds;
    scores_.on_miss("n", at);
  }
  scores_.on_answer("n", milliseconds(1), false);
  for (int i = 0; i < 3; ++i) scores_.on_miss("n", at);
  EXPECT_TRUE(scores_.take_probe("n", at + std::chrono::seconds(1)));
}

TEST(HedgeBudget, GivesItsFractionInTheLongRun) {
  HedgeBudget budget(0.05);
  int hedges = 0;
  for (int i = 0; i < 100000; ++i) {
    budget.on_read();
    hedges += budget.take();
  }
  EXPECT_NEAR(hedges, 5000, 12);
}

TEST(HedgeBudget, WhatCouldNotBeWithheldIsPaidFor) {
  HedgeBudget budget(0.05, 2);
  budget.charge();
  EXPECT_TRUE(budget.take());
  EXPECT_FALSE(budget.take());
  budget.charge();
  for (int i = 0; i < 21; ++i) budget.on_read();
  EXPECT_TRUE(budget.take());
}

}  // namespace
}  // namespace millrace::storage::store
