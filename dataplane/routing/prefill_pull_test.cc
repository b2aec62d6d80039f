#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "common/str_cat.h"
#include "dataplane/routing/buckets.h"
#include "dataplane/routing/prefill_claim.h"
#include "dataplane/routing/prefill_queue.h"

namespace millrace::dataplane::routing {
namespace {

using std::chrono::milliseconds;

TimePoint at(int ms) { return TimePoint() + milliseconds(ms); }

TEST(Buckets, LowerEdgesBelongToTheirBucket) {
  EXPECT_EQ(bucket_of(0), 0);
  EXPECT_EQ(bucket_of(16'383), 0);
  EXPECT_EQ(bucket_of(16'384), 1);
  EXPECT_EQ(bucket_of(65'535), 1);
  EXPECT_EQ(bucket_of(65'536), 2);
  EXPECT_EQ(bucket_of(262'143), 2);
  EXPECT_EQ(bucket_of(262'144), 3);
  EXPECT_EQ(bucket_of(1'000'000), 3);
  EXPECT_EQ(bucket_name(0), "<16K");
  EXPECT_EQ(bucket_name(1), "16K-64K");
  EXPECT_EQ(bucket_name(2), "64K-256K");
  EXPECT_EQ(bucket_name(3), ">=256K");
  const BucketEdges short_ones{{500, 1024, 1500}};
  EXPECT_EQ(bucket_of(499, short_ones), 0);
  EXPECT_EQ(bucket_of(500, short_ones), 1);
  EXPECT_EQ(bucket_of(4000, short_ones), 3);
  EXPECT_EQ(bucket_name(0, short_ones), "<500");
  EXPECT_EQ(bucket_name(1, short_ones), "500-1K");
  EXPECT_EQ(bucket_name(3, short_ones), ">=1500");
}

TEST(Buckets, EdgesAreThreeAscendingLengths) {
  EXPECT_EQ(*parse_bucket_edges("16384,65536,262144"), BucketEdges{});
  EXPECT_EQ(*parse_bucket_edges("1,2,3"), (BucketEdges{{1, 2, 3}}));
  for (const char* text : {"", "1", "1,2", "1,2,", "1,2,3,", "1,2,3,4", "1, 2,3", "a,b,c", "1,2,3K",
                           "1,2,99999999999999999999"}) {
    const absl::Status status = parse_bucket_edges(text).status();
    EXPECT_EQ(message_of(status), str_cat("bucket edges are \"", text,
                                          "\"; they must be 3 numbers of tokens with commas "
                                          "between them, like 16384,65536,262144"));
  }
  for (const char* text : {"0,1,2", "-1,1,2", "5,5,6", "5,6,6", "3,2,1"}) {
    EXPECT_THAT(message_of(parse_bucket_edges(text).status()),
                testing::HasSubstr("from 1 token on, each above the one before"))
        << text;
  }
}

TEST(Buckets, EdgesOfAViewMayBeOfAnotherVersion) {
  using Published = std::vector<std::uint64_t>;
  EXPECT_EQ(bucket_edges(Published{}), BucketEdges{});
  EXPECT_EQ(bucket_edges(Published{10, 20, 30}), (BucketEdges{{10, 20, 30}}));
  EXPECT_EQ(bucket_edges(Published{10, 20, 30, 40}), (BucketEdges{{10, 20, 30}}));
  EXPECT_EQ(bucket_of(1'000'000'000, bucket_edges(Published{10, 20})), 2);
}

TEST(Buckets, SpillToTheNextLargerThenTheNextSmaller) {
  using Counts = std::array<int, kBucketCount>;
  EXPECT_EQ(serving_bucket(1, Counts{1, 1, 1, 1}), 1);
  EXPECT_EQ(serving_bucket(1, Counts{1, 0, 0, 1}), 3);
  EXPECT_EQ(serving_bucket(3, Counts{1, 1, 0, 0}), 1);
  EXPECT_EQ(serving_bucket(2, Counts{2, 0, 0, 0}), 0);
  EXPECT_EQ(serving_bucket(2, Counts{}), std::nullopt);
  EXPECT_EQ(served_buckets(2, Counts{1, 0, 3, 0}), (std::array<bool, 4>{false, true, true, true}));
}

TEST(Buckets, EveryBucketIsServedByExactlyOneWhereThereIsAnInstance) {
  for (int pattern = 1; pattern < 16; ++pattern) {
    std::array<int, kBucketCount> counts{};
    for (std::size_t b = 0; b < 4; ++b) counts[b] = pattern >> b & 1;
    std::array<int, kBucketCount> served{};
    for (int bucket = 0; bucket < kBucketCount; ++bucket) {
      if (counts[static_cast<std::size_t>(bucket)] == 0) continue;
      const auto serves = served_buckets(bucket, counts);
      for (std::size_t b = 0; b < 4; ++b) served[b] += serves[b] ? 1 : 0;
    }
    EXPECT_EQ(served, (std::array<int, 4>{1, 1, 1, 1}));
  }
}

TEST(PrefillQueue, IsFirstInFirstOutAndBounded) {
  PrefillQueue queue(3);
  ASSERT_TRUE(queue.push(0, {1, 10, at(5)}).ok());
  ASSERT_TRUE(queue.push(0, {2, 20, at(6)}).ok());
  ASSERT_TRUE(queue.push(2, {3, 30, at(4)}).ok());
  EXPECT_EQ(queue.push(1, {4, 1, at(9)}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(queue.quota_ns(0), 30);
  EXPECT_EQ(queue.head(0)->request, 1U);
  EXPECT_EQ(queue.head(1), nullptr);
  EXPECT_TRUE(queue.remove(1));
  EXPECT_FALSE(queue.remove(1));
  EXPECT_EQ(queue.grant(0)->request, 2U);
  EXPECT_FALSE(queue.grant(0).has_value());
  // One that comes back after a failure takes its old place.
  ASSERT_TRUE(queue.push(2, {9, 1, at(8)}).ok());
  ASSERT_TRUE(queue.push(2, {7, 1, at(1)}).ok());
  EXPECT_EQ(queue.grant(2)->request, 7U);
  EXPECT_EQ(queue.grant(2)->request, 3U);
  EXPECT_EQ(queue.grant(2)->request, 9U);
  EXPECT_EQ(queue.size(), 0U);
  EXPECT_EQ(queue.quota_ns(2), 0);
}

TEST(PrefillQueue, AgreesWithASortedList) {
  std::mt19937_64 random(3);
  PrefillQueue queue(64);
  std::array<std::vector<WaitingPrefill>, kBucketCount> model;
  const auto before = [](const WaitingPrefill& a, const WaitingPrefill& b) {
    return std::pair(a.since, a.request) < std::pair(b.since, b.request);
  };
  std::size_t size = 0;
  for (RequestNumber next = 1; next < 20'000; ++next) {
    const auto bucket = random() % kBucketCount;
    auto& list = model[bucket];
    if (random() % 2 == 0) {
      const WaitingPrefill waiting{next, static_cast<std::int64_t>(random() % 100),
                                   at(static_cast<int>(random() % 50))};
      const bool fits = size < 64;
      ASSERT_EQ(queue.push(static_cast<int>(bucket), waiting).ok(), fits);
      if (fits) {
        list.insert(std::upper_bound(list.begin(), list.end(), waiting, before), waiting);
        ++size;
      }
    } else if (random() % 2 == 0 && !list.empty()) {
      const auto victim = list.begin() + static_cast<std::ptrdiff_t>(random() % list.size());
      ASSERT_TRUE(queue.remove(victim->request));
      list.erase(victim);
      --size;
    } else {
      const auto granted = queue.grant(static_cast<int>(bucket));
      ASSERT_EQ(granted.has_value(), !list.empty());
      if (!list.empty()) {
        ASSERT_EQ(granted->request, list.front().request);
        list.erase(list.begin());
        --size;
      }
    }
    std::int64_t quota = 0;
    for (const WaitingPrefill& waiting : list) quota += waiting.quota_ns;
    ASSERT_EQ(queue.quota_ns(static_cast<int>(bucket)), quota);
    ASSERT_EQ(queue.size(), size);
  }
}

TEST(Claim, GoesToTheRequestThatHasWaitedLongest) {
  std::vector<Offers> offers(3);
  offers[0][1] = {at(30), 5, 1};
  offers[1][0] = {at(20), 5, 2};
  offers[2][0] = {at(20), 5, 1};
  offers[2][3] = {at(1), 5, 0};  // nothing waits there
  EXPECT_EQ(choose_claim(offers, {true, true, true, true}), (ClaimTarget{1, 0}));
  EXPECT_EQ(choose_claim(offers, {false, true, true, true}), (ClaimTarget{0, 1}));
  EXPECT_EQ(choose_claim(offers, {false, false, true, true}), std::nullopt);
  EXPECT_EQ(choose_claim({}, {true, true, true, true}), std::nullopt);
}

TEST(Claim, StopsAtTheLimitButNeverLeavesARankIdle) {
  const ClaimLimits limits{.quota_per_rank_ns = 100};
  EXPECT_TRUE(wants_more(std::vector<std::int64_t>{500, 99}, limits));
  EXPECT_FALSE(wants_more(std::vector<std::int64_t>{500, 100}, limits));
  EXPECT_TRUE(wants_more(std::vector<std::int64_t>{500, 0}, {.quota_per_rank_ns = 0}));
  EXPECT_FALSE(wants_more({}, limits));
  EXPECT_EQ(pick_rank(std::vector<std::int64_t>{7, 3, 3}), 1U);
}

TEST(Claim, HelpsOtherBucketsWhenIdleOrWhenTheyHaveWaitedFarLonger) {
  using Buckets = std::array<bool, kBucketCount>;
  const Buckets own = {true, false, false, false};
  const Buckets helped = {true, false, true, false};
  const ClaimLimits limits{.head_start = milliseconds(100)};
  const std::vector<std::int64_t> idle = {70, 0};
  const std::vector<std::int64_t> busy = {70, 1};
  std::vector<Offers> offers(2);
  offers[1][2] = {at(3), 5, 1};
  EXPECT_EQ(claimable_buckets(offers, own, idle, at(4), limits), helped);
  EXPECT_EQ(claimable_buckets(offers, own, busy, at(102), limits), own);
  EXPECT_EQ(claimable_buckets(offers, own, busy, at(103), limits), helped);
  offers[0][0] = {at(4), 5, 1};
  EXPECT_EQ(claimable_buckets(offers, own, idle, at(200), limits), own);
  offers[0][0] = {at(103), 5, 1};
  EXPECT_EQ(claimable_buckets(offers, own, busy, at(200), limits), helped);
}

}  // namespace
}  // namespace millrace::dataplane::routing
