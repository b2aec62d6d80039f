#include "dataplane/routing/claim_desk.h"

#include <gtest/gtest.h>

namespace millrace::dataplane::routing {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kMs = 1'000'000;
TimePoint at(int ms) { return TimePoint() + milliseconds(ms); }

Offers waiting_in(int bucket, int since_ms, std::int64_t count = 1) {
  Offers offers{};
  offers[static_cast<std::size_t>(bucket)] = {at(since_ms), kMs, count};
  return offers;
}

TEST(ClaimDesk, AsksForWhatHasWaitedLongest) {
  ClaimDesk desk({});
  EXPECT_EQ(desk.next_claim(at(0)), std::nullopt);
  desk.offer(7, waiting_in(0, 20));
  desk.offer(8, waiting_in(1, 10));
  EXPECT_EQ(desk.next_claim(at(30)), (ClaimDesk::Claim{8, 1, 1}));
  // One at a time.
  EXPECT_EQ(desk.next_claim(at(30)), std::nullopt);
  desk.grant(8, 1);
  EXPECT_EQ(desk.next_claim(at(31)), (ClaimDesk::Claim{7, 1, 0}));
  desk.gone(7, 1);
  desk.offer(7, {});
  EXPECT_EQ(desk.next_claim(at(32)), std::nullopt);
}

TEST(ClaimDesk, TakesAGrantedRequestForNoLongerOffered) {
  ClaimDesk desk({});
  desk.offer(1, waiting_in(0, 0, 2));
  desk.grant(1, desk.next_claim(at(1))->number);
  EXPECT_TRUE(desk.next_claim(at(2)).has_value());
  desk.grant(1, 2);
  EXPECT_EQ(desk.next_claim(at(3)), std::nullopt);
}

TEST(ClaimDesk, CountsWhatIsQueuedAndWhatIsComing) {
  ClaimDesk desk({.quota_per_rank_ns = 100});
  EXPECT_TRUE(desk.wants_more());
  desk.coming(1, 60);
  EXPECT_TRUE(desk.wants_more());
  desk.coming(1, 0);  // not a prefill
  desk.coming(1, 60);
  EXPECT_FALSE(desk.wants_more());
  // The engine has the first two now, and says so.
  desk.set_queued(60, 1);
  desk.taken_up(1, 2);
  EXPECT_FALSE(desk.wants_more());
  desk.set_queued(30, 0);
  EXPECT_TRUE(desk.wants_more());
  desk.coming(1, 10);
  EXPECT_FALSE(desk.wants_more());
  desk.not_coming(1);
  EXPECT_TRUE(desk.wants_more());
  // A late report of an earlier number changes nothing; the end of the stream takes all along.
  desk.taken_up(1, 1);
  desk.coming(2, 200);
  EXPECT_FALSE(desk.wants_more());
  desk.close(2);
  EXPECT_TRUE(desk.wants_more());
  desk.close(1);
  desk.set_queued(0, 0);
  EXPECT_TRUE(desk.wants_more());
}

TEST(ClaimDesk, AnIdleRankTakesOneOfAnySizeAndShortOnesAreCountedToo) {
  ClaimDesk desk({.quota_per_rank_ns = 100, .max_requests = 3});
  desk.coming(1, 1'000'000);
  EXPECT_FALSE(desk.wants_more());
  desk.not_coming(1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(desk.wants_more());
    desk.coming(1, 1);
  }
  EXPECT_FALSE(desk.wants_more());
  desk.taken_up(1, 2);
  desk.set_queued(2, 2);
  EXPECT_FALSE(desk.wants_more());
  desk.set_queued(2, 1);
  EXPECT_TRUE(desk.wants_more());
}

TEST(ClaimDesk, LeavesAsideWhoDoesNotAnswer) {
  ClaimDesk desk({.answer_time = milliseconds(100)});
  desk.offer(1, waiting_in(0, 0, 5));
  desk.offer(2, waiting_in(0, 10, 5));
  EXPECT_EQ(desk.next_claim(at(20)), (ClaimDesk::Claim{1, 1, 0}));
  EXPECT_EQ(desk.next_claim(at(119)), std::nullopt);
  EXPECT_EQ(desk.next_claim(at(120)), (ClaimDesk::Claim{2, 1, 0}));
  desk.grant(2, 1);
  EXPECT_EQ(desk.next_claim(at(121)), (ClaimDesk::Claim{2, 2, 0}));
  desk.gone(2, 2);
  desk.grant(1, 99);  // no such claim
  EXPECT_EQ(desk.next_claim(at(122))->stream, 2U);
  desk.gone(2, 3);
  desk.grant(1, 1);  // late, but it counts
  EXPECT_EQ(desk.next_claim(at(123)), (ClaimDesk::Claim{1, 2, 0}));
  desk.close(1);
  EXPECT_EQ(desk.next_claim(at(124))->stream, 2U);
}

TEST(ClaimDesk, ServesItsBucketsAndHelpsOthersWhenIdleOrLate) {
  ClaimDesk desk({.quota_per_rank_ns = 100, .head_start = milliseconds(1000)});
  desk.serve({false, true, false, false}, 3);
  desk.serve({true, false, false, false}, 2);  // passed on late: an earlier version
  desk.offer(1, waiting_in(0, 0));
  desk.set_queued(50, 0);
  EXPECT_EQ(desk.next_claim(at(10)), std::nullopt);
  EXPECT_EQ(desk.next_claim(at(1000))->bucket, 0);  // a second late
  desk.gone(1, 1);
  desk.set_queued(0, 0);
  EXPECT_EQ(desk.next_claim(at(10))->bucket, 0);  // idle
  desk.gone(1, 2);
  desk.offer(2, waiting_in(1, 5));
  EXPECT_EQ(desk.next_claim(at(10))->bucket, 1);  // its own first
}

TEST(ClaimDesk, TakesNothingThatWouldWaitForDecode) {
  ClaimDesk desk({});
  desk.offer(1, waiting_in(0, 0));
  desk.set_held_up(true);
  EXPECT_EQ(desk.next_claim(at(1)), std::nullopt);
  desk.set_held_up(false);
  EXPECT_TRUE(desk.next_claim(at(1)).has_value());
}

TEST(ClaimDesk, StopsForADrain) {
  ClaimDesk desk({});
  desk.offer(1, waiting_in(0, 0));
  desk.stop();
  EXPECT_FALSE(desk.wants_more());
  EXPECT_EQ(desk.next_claim(at(1)), std::nullopt);
}

}  // namespace
}  // namespace millrace::dataplane::routing
