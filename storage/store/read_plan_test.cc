#include "storage/store/read_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <random>

namespace millrace::storage::store {
namespace {

constexpr MemberMask bit(int member) { return MemberMask{1} << member; }

std::vector<Standing> all_ready(int members) {
  return std::vector<Standing>(static_cast<std::size_t>(members), Standing::kReady);
}

/// How a member of a scenario behaves when it is asked.
enum class Behaviour { kGood, kMissing, kBad, kRefused, kOtherGeneration, kLate, kSilent };
constexpr Behaviour kFailures[] = {Behaviour::kMissing, Behaviour::kBad,
                                   Behaviour::kRefused, Behaviour::kOtherGeneration,
                                   Behaviour::kLate,    Behaviour::kSilent};

constexpr Generation kOurs = 77;
constexpr Generation kOther = 88;

/// Plays a read against members of given behaviour, in an order drawn from a seed, and checks every
/// step. Prompt members answer first; then the deadlines of all others pass; late ones answer then.
class Scenario {
 public:
  Scenario(int k, std::vector<Standing> standings, std::vector<Behaviour> behaviours,
           std::uint32_t seed, double budget)
      : k_(k),
        standings_(standings),
        behaviours_(std::move(behaviours)),
        plan_(k, std::move(standings)),
        budget_(0, budget),
        random_(seed) {}

  void play() {
    take(plan_.start(random_(), 0));
    EXPECT_LE(std::popcount(asked_), k_ + 1);
    bool deadlines_passed = false;
    for (int step = 0; step < 100; ++step) {
      const int next = pick(deadlines_passed);
      if (next >= 0) {
        answer(next);
        continue;
      }
      const MemberMask fresh = plan_.waiting() & ~overdue_;
      if (plan_.is_finished() || fresh == 0) break;
      overdue_ |= fresh;
      deadlines_passed = true;
      take(plan_.on_overdue(fresh, budget_));
    }
    if (!plan_.is_finished()) plan_.on_deadline();
  }

  const ReadPlan& plan() const { return plan_; }
  MemberMask asked() const { return asked_; }
  MemberMask repaired() const { return repaired_; }

 private:
  Behaviour behaviour(int member) const { return behaviours_[static_cast<std::size_t>(member)]; }

  /// A member whose answer is due, at random; late ones only once nothing else is; -1: none.
  int pick(bool deadlines_passed) {
    std::vector<int> prompt;
    std::vector<int> late;
    for (MemberMask rest = plan_.waiting(); rest != 0; rest &= rest - 1) {
      const int member = std::countr_zero(rest);
      if (behaviour(member) == Behaviour::kSilent) continue;
      (behaviour(member) == Behaviour::kLate ? late : prompt).push_back(member);
    }
    std::vector<int>& from = !prompt.empty() ? prompt : late;
    const bool all_overdue = (plan_.waiting() & ~overdue_) == 0;
    if (from.empty() || (&from == &late && !(deadlines_passed && all_overdue))) return -1;
    return from[random_() % from.size()];
  }

  void answer(int member) {
    switch (behaviour(member)) {
      case Behaviour::kGood:
      case Behaviour::kLate:
        return take(plan_.on_reply(member, ShardVerdict::kGood, kOurs));
      case Behaviour::kOtherGeneration:
        return take(plan_.on_reply(member, ShardVerdict::kGood, kOther));
      case Behaviour::kMissing:
        return take(plan_.on_reply(member, ShardVerdict::kMissing, 0));
      case Behaviour::kBad:
        return take(plan_.on_reply(member, ShardVerdict::kBad, 0));
      case Behaviour::kRefused:
        return take(plan_.on_reply(member, ShardVerdict::kRefused, 0));
      case Behaviour::kSilent:
        FAIL();
    }
  }

  void take(const ReadStep& step) {
    EXPECT_EQ(step.ask & asked_, 0U) << "asked twice";
    for (MemberMask rest = step.ask; rest != 0; rest &= rest - 1)
      EXPECT_NE(standings_[static_cast<std::size_t>(std::countr_zero(rest))], Standing::kDown);
    asked_ |= step.ask;
    EXPECT_EQ(step.repair & repaired_, 0U) << "repaired twice";
    repaired_ |= step.repair;
  }

  const int k_;
  const std::vector<Standing> standings_;
  const std::vector<Behaviour> behaviours_;
  ReadPlan plan_;
  HedgeBudget budget_;
  std::mt19937 random_;
  MemberMask asked_ = 0;
  MemberMask overdue_ = 0;
  MemberMask repaired_ = 0;
};

/// The slow, obvious truth: a read succeeds when k members that may be asked would give a good
/// shard of one generation, whenever.
void check_against_truth(const Scenario& scenario, int k, const std::vector<Standing>& standings,
                         const std::vector<Behaviour>& behaviours) {
  MemberMask ours = 0;
  MemberMask other = 0;
  for (std::size_t i = 0; i < behaviours.size(); ++i) {
    if (standings[i] == Standing::kDown) continue;
    const auto self = bit(static_cast<int>(i));
    if (behaviours[i] == Behaviour::kGood || behaviours[i] == Behaviour::kLate) ours |= self;
    if (behaviours[i] == Behaviour::kOtherGeneration) other |= self;
  }
  const bool is_ours = std::popcount(ours) >= k;
  const ReadPlan& plan = scenario.plan();
  ASSERT_TRUE(plan.is_finished());
  ASSERT_EQ(plan.is_hit(), is_ours || std::popcount(other) >= k);
  if (!plan.is_hit()) {
    ASSERT_EQ(scenario.repaired(), 0U);
    return;
  }
  ASSERT_EQ(plan.generation(), is_ours ? kOurs : kOther);
  ASSERT_EQ(std::popcount(plan.decode_from()), k);
  ASSERT_EQ(plan.decode_from() & ~(is_ours ? ours : other), 0U) << "not from good shards alone";
  ASSERT_EQ(plan.decode_from() & ~scenario.asked(), 0U);
  if (!is_ours) return;
  for (MemberMask rest = scenario.repaired(); rest != 0; rest &= rest - 1) {
    const Behaviour behaviour = behaviours[static_cast<std::size_t>(std::countr_zero(rest))];
    ASSERT_TRUE(behaviour == Behaviour::kMissing || behaviour == Behaviour::kBad ||
                behaviour == Behaviour::kOtherGeneration);
  }
}

/// Every choice of up to three members, with every failure each.
void for_each_pattern(int members, const std::function<void(const std::vector<Behaviour>&)>& run) {
  const auto n = static_cast<std::size_t>(members);
  std::vector<Behaviour> behaviours(n, Behaviour::kGood);
  run(behaviours);
  for (std::size_t a = 0; a < n; ++a) {
    for (const Behaviour fa : kFailures) {
      behaviours[a] = fa;
      run(behaviours);
      for (std::size_t b = a + 1; b < n; ++b) {
        for (const Behaviour fb : kFailures) {
          behaviours[b] = fb;
          run(behaviours);
          for (std::size_t c = b + 1; c < n; ++c) {
            for (const Behaviour fc : kFailures) {
              behaviours[c] = fc;
              run(behaviours);
            }
            behaviours[c] = Behaviour::kGood;
          }
        }
        behaviours[b] = Behaviour::kGood;
      }
    }
    behaviours[a] = Behaviour::kGood;
  }
}

TEST(ReadPlan, EveryPatternOfUpToThreeFailuresOfTwelve) {
  std::uint32_t seed = 0;
  const std::vector<Standing> standings = all_ready(12);
  for_each_pattern(12, [&](const std::vector<Behaviour>& behaviours) {
    for (const double budget : {0.0, 5.0}) {
      Scenario scenario(10, standings, behaviours, ++seed, budget);
      scenario.play();
      ASSERT_NO_FATAL_FAILURE(check_against_truth(scenario, 10, standings, behaviours))
          << "seed " << seed;
    }
  });
}

TEST(ReadPlan, EveryPatternOfASmallGroupInManyOrdersWhateverTheStandings) {
  std::mt19937 random(5);
  std::uint32_t seed = 0;
  for_each_pattern(5, [&](const std::vector<Behaviour>& behaviours) {
    for (int round = 0; round < 60; ++round) {
      std::vector<Standing> standings = all_ready(5);
      for (Standing& standing : standings)
        if (random() % 3 == 0) standing = static_cast<Standing>(random() % 4);
      Scenario scenario(3, standings, behaviours, ++seed, round % 2);
      scenario.play();
      ASSERT_NO_FATAL_FAILURE(check_against_truth(scenario, 3, standings, behaviours))
          << "seed " << seed;
    }
  });
}

TEST(ReadPlan, AsksElevenOfTwelveAndLeavesOutEachAsOften) {
  std::map<MemberMask, int> left_out;
  for (std::uint64_t rotation = 0; rotation < 120; ++rotation) {
    ReadPlan plan(10, all_ready(12));
    const ReadStep step = plan.start(rotation, 0);
    ASSERT_EQ(std::popcount(step.ask), 11);
    ++left_out[0xfffU & ~step.ask];
  }
  ASSERT_EQ(left_out.size(), 12U);
  for (const auto& [member, count] : left_out) EXPECT_EQ(count, 10) << member;
}

TEST(ReadPlan, WithoutASpareItAsksTenAndTheNextOneWhenItMust) {
  for (std::uint64_t rotation = 0; rotation < 24; ++rotation) {
    ReadPlan plan(10, std::vector<Standing>(12, Standing::kReady), 0);
    const ReadStep first = plan.start(rotation, 0);
    ASSERT_EQ(std::popcount(first.ask), 10) << rotation;
    const ReadStep next =
        plan.on_reply(std::countr_zero(first.ask), ShardVerdict::kRefused, Generation{});
    EXPECT_EQ(std::popcount(next.ask), 1) << rotation;
    EXPECT_EQ(next.ask & first.ask, 0u) << rotation;
  }
}

TEST(ReadPlan, TheLadderOfMissingMembers) {
  for (const Standing gone : {Standing::kDown, Standing::kProbation, Standing::kRebuilding}) {
    std::vector<Standing> standings = all_ready(12);
    standings[4] = gone;
    EXPECT_EQ(ReadPlan(10, standings).start(3, 0).ask, 0xfffU & ~bit(4));
    standings[7] = gone;
    EXPECT_EQ(ReadPlan(10, standings).start(3, 0).ask, 0xfffU & ~bit(4) & ~bit(7));
    standings[9] = gone;
    ReadPlan plan(10, standings);
    const ReadStep step = plan.start(3, 0);
    if (gone == Standing::kDown) {
      EXPECT_EQ(step.ask, 0U);
      EXPECT_EQ(plan.miss_reason(), MissReason::kTooFewMembers);
      EXPECT_EQ(plan.waiting(), 0U);
    } else {
      // It cannot do without: as many of the doubtful as it needs.
      EXPECT_EQ(std::popcount(step.ask), 10);
    }
  }
}

TEST(ReadPlan, AnErrorIsAnsweredByTheTwelfthAtOnce) {
  for (const ShardVerdict verdict :
       {ShardVerdict::kMissing, ShardVerdict::kBad, ShardVerdict::kRefused}) {
    ReadPlan plan(10, all_ready(12));
    const MemberMask asked = plan.start(0, 0).ask;
    const ReadStep step = plan.on_reply(std::countr_zero(asked), verdict, 0);
    EXPECT_EQ(step.ask, 0xfffU & ~asked);
    EXPECT_FALSE(step.is_hedge);
  }
}

TEST(ReadPlan, AHedgeIsWithheldOnlyFromAReadThatCanDoWithout) {
  const auto start = [](ReadPlan& plan) { return plan.start(0, 0).ask; };
  {
    HedgeBudget empty(0, 0);
    ReadPlan plan(10, all_ready(12));
    const int slow = std::countr_zero(start(plan));
    EXPECT_EQ(plan.on_overdue(bit(slow), empty).ask, 0U);
  }
  {
    HedgeBudget one(0, 1);
    ReadPlan plan(10, all_ready(12));
    const int slow = std::countr_zero(start(plan));
    const ReadStep step = plan.on_overdue(bit(slow), one);
    EXPECT_EQ(std::popcount(step.ask), 1);
    EXPECT_TRUE(step.is_hedge);
    EXPECT_FALSE(one.take());
  }
  {
    HedgeBudget empty(0, 0);
    ReadPlan plan(10, all_ready(12));
    const MemberMask asked = start(plan);
    const int first = std::countr_zero(asked);
    const int second = std::countr_zero(asked & ~bit(first));
    const ReadStep step = plan.on_overdue(bit(first) | bit(second), empty);
    EXPECT_EQ(std::popcount(step.ask), 1);
    EXPECT_TRUE(step.is_hedge);
  }
}

TEST(ReadPlan, ABlockThatIsNotThereIsAMissAtTheThirdAnswer) {
  ReadPlan plan(10, all_ready(12));
  plan.start(0, 0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_FALSE(plan.is_finished());
    plan.on_reply(std::countr_zero(plan.waiting()), ShardVerdict::kMissing, 0);
  }
  EXPECT_EQ(plan.miss_reason(), MissReason::kNotFound);
}

TEST(ReadPlan, GenerationsAreNeverMixed) {
  ReadPlan plan(10, all_ready(12));
  plan.start(0, 0);
  // Nine of each of two writes cannot be: six and six.
  int count = 0;
  while (!plan.is_finished() && plan.waiting() != 0) {
    plan.on_reply(std::countr_zero(plan.waiting()), ShardVerdict::kGood,
                  count++ % 2 == 0 ? kOurs : kOther);
  }
  EXPECT_FALSE(plan.is_hit());
  EXPECT_EQ(plan.miss_reason(), MissReason::kTooFewShards);
}

TEST(ReadPlan, AProbeIsAskedOnTopAndNeverWaitedFor) {
  std::vector<Standing> standings = all_ready(12);
  standings[2] = Standing::kProbation;
  ReadPlan plan(10, standings);
  const ReadStep step = plan.start(0, bit(2));
  EXPECT_EQ(step.ask, 0xfffU);
  HedgeBudget budget(0, 5);
  EXPECT_EQ(plan.on_overdue(bit(2), budget).ask, 0U);
  EXPECT_EQ(plan.on_reply(2, ShardVerdict::kRefused, 0).ask, 0U);
  for (int i = 3; i < 12; ++i) plan.on_reply(i, ShardVerdict::kGood, kOurs);
  EXPECT_FALSE(plan.is_finished());
  plan.on_reply(0, ShardVerdict::kGood, kOurs);
  EXPECT_TRUE(plan.is_hit());
}

TEST(ReadPlan, WhatTurnsOutBadLateIsRepairedToo) {
  ReadPlan plan(10, all_ready(12));
  MemberMask asked = plan.start(0, 0).ask;
  const int last = 31 - std::countl_zero(asked);
  for (MemberMask rest = asked & ~bit(last); rest != 0; rest &= rest - 1)
    plan.on_reply(std::countr_zero(rest), ShardVerdict::kGood, kOurs);
  ASSERT_TRUE(plan.is_hit());
  EXPECT_EQ(plan.on_reply(last, ShardVerdict::kBad, 0).repair, bit(last));
}

}  // namespace
}  // namespace millrace::storage::store
