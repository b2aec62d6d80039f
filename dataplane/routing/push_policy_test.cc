#include "dataplane/routing/push_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/str_cat.h"

namespace millrace::dataplane::routing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

TimePoint at(int s) { return TimePoint() + seconds(s); }

const std::vector<PushRank> kRanks = {
    {5, 900, 9000}, {3, 950, 700}, {9, 100, 8000}, {1, 50, 60, false}, {3, 800, 9000}};

PushRouter router(Policy policy, PushSettings settings = {}) { return {policy, settings, 7}; }

TEST(PushPolicy, NamesAreReadAndUnknownOnesRefusedWithTheList) {
  for (const std::string_view name : kPolicyNames) {
    ASSERT_TRUE(parse_policy(name).ok());
    EXPECT_EQ(to_string(*parse_policy(name)), name);
  }
  EXPECT_THAT(std::string(message_of(parse_policy("fastest").status())),
              HasSubstr("policy \"fastest\" is not known; there are millrace, round_robin"));
}

TEST(PushPolicy, RoundRobinPassesByWhatDoesNotAccept) {
  PushRouter turn = router(Policy::kRoundRobin);
  std::vector<std::size_t> picks;
  picks.reserve(6);
  for (int i = 0; i < 6; ++i) picks.push_back(*turn.pick_prefill({}, kRanks, at(0)));
  EXPECT_THAT(picks, ::testing::ElementsAre(0, 1, 2, 4, 0, 1));
}

TEST(PushPolicy, LeastRequestsAndLeastTokensDiffer) {
  EXPECT_EQ(router(Policy::kLeastRequests).pick_prefill({}, kRanks, at(0)), 1U);
  EXPECT_EQ(router(Policy::kLeastTokens).pick_prefill({}, kRanks, at(0)), 2U);
}

TEST(PushPolicy, PowerOfTwoNeverTakesTheWorstAndUsesTheRest) {
  PushRouter two = router(Policy::kPowerOfTwo);
  std::vector<int> picks(kRanks.size());
  for (int i = 0; i < 2000; ++i) ++picks[*two.pick_prefill({}, kRanks, at(0))];
  EXPECT_EQ(picks[1], 0);            // the most tokens: always loses
  EXPECT_EQ(picks[3], 0);            // does not accept
  EXPECT_NEAR(picks[2], 1000, 100);  // the fewest: wins in 3 of 6 pairs
  EXPECT_NEAR(picks[0], 333, 80);
  PushRouter alone = router(Policy::kPowerOfTwo);
  EXPECT_EQ(alone.pick_prefill({}, std::vector<PushRank>{{9, 9, 9}}, at(0)), 0U);
}

TEST(PushPolicy, OverlapCreditGoesWhereTheKvIsUnlessItIsTooBusy) {
  PushRouter credit = router(Policy::kOverlapCredit);
  EXPECT_EQ(credit.pick_prefill({1000, 0, std::nullopt}, kRanks, at(0)), 1U);
  // Half of 20,000 cached tokens is more than what rank 2 has queued beyond rank 1.
  EXPECT_EQ(credit.pick_prefill({21'000, 20'000, 2}, kRanks, at(0)), 2U);
  EXPECT_EQ(credit.pick_prefill({11'000, 10'000, 2}, kRanks, at(0)), 1U);
  EXPECT_EQ(credited_tokens({1100, 1000, 2}, 2, {}), 350);
  EXPECT_EQ(credited_tokens({1100, 1000, 2}, 1, {}), 850);
}

TEST(PushPolicy, MovingBucketsFollowTheLengthsOfTheWindow) {
  PushRouter buckets = router(Policy::kMovingBuckets, {.ranks_per_instance = 2});
  const std::vector<PushRank> idle(4);
  // The first split is even over 4,096 tokens.
  const auto instance_of = [&](std::int64_t tokens, int s) {
    return *buckets.pick_prefill({tokens, 0, {}}, idle, at(s)) / 2;
  };
  EXPECT_EQ(instance_of(100, 0), 0U);
  EXPECT_EQ(instance_of(3000, 0), 1U);
  // The first move knows one prompt of 1,000 only; by the second there are 20, and 8 of 10,000.
  for (int i = 0; i < 20; ++i) instance_of(1000, 6);
  for (int i = 0; i < 8; ++i) instance_of(10'000, 6);
  EXPECT_EQ(instance_of(3000, 11), 0U);
  EXPECT_EQ(instance_of(10'000, 11), 1U);
}

TEST(PushPolicy, MovingBucketsTakeTheLeastLoadedHealthyInstanceWhenImbalanced) {
  PushRouter buckets = router(Policy::kMovingBuckets);
  std::vector<PushRank> ranks = {{0, 0, 0, false}, {50, 0, 0}, {4, 0, 0}};
  EXPECT_EQ(buckets.pick_prefill({1700, 0, {}}, ranks, at(0)), 2U);  // of bucket 1, 46 apart
  ranks[1].requests = 30;
  EXPECT_EQ(buckets.pick_prefill({1700, 0, {}}, ranks, at(0)), 1U);
  EXPECT_EQ(buckets.pick_prefill({10, 0, {}}, ranks, at(0)), 2U);  // its own is down
}

TEST(PushPolicy, RoutersDoNotFlockToOneOfManyEqualRanks) {
  const std::vector<PushRank> idle(64);
  std::vector<int> picks(idle.size());
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    ++picks[*PushRouter(Policy::kLeastTokens, {}, seed).pick_prefill({}, idle, at(0))];
  }
  EXPECT_LE(*std::max_element(picks.begin(), picks.end()), 4);
}

TEST(PushPolicy, NoneAccepting) {
  const std::vector<PushRank> down = {{0, 0, 0, false}};
  const std::vector<DecodeRank> full = {{1, 10, 5, true}, {0, 0, 100, false}};
  for (const std::string_view name : kPolicyNames) {
    const Policy policy = *parse_policy(name);
    if (policy == Policy::kMillrace) continue;
    EXPECT_EQ(router(policy).pick_prefill({}, down, at(0)), std::nullopt) << name;
    EXPECT_EQ(router(policy).pick_decode(6, full), std::nullopt) << name;
    EXPECT_EQ(router(policy).pick_decode(5, full), 0U) << name;
  }
}

TEST(PushPolicy, DecodeByRequestsOrByKv) {
  const std::vector<DecodeRank> ranks = {{9, 10, 100}, {2, 90, 100}, {1, 10, 3}};
  EXPECT_EQ(router(Policy::kLeastRequests).pick_decode(4, ranks), 1U);
  EXPECT_EQ(router(Policy::kMovingBuckets).pick_decode(4, ranks), 1U);
  EXPECT_EQ(router(Policy::kLeastTokens).pick_decode(4, ranks), 0U);
  EXPECT_EQ(router(Policy::kOverlapCredit).pick_decode(4, ranks), 0U);
  EXPECT_EQ(router(Policy::kPowerOfTwo).pick_decode(4, ranks), 0U);
  EXPECT_EQ(router(Policy::kRoundRobin).pick_decode(4, ranks), 0U);
}

}  // namespace
}  // namespace millrace::dataplane::routing
