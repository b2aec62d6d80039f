#include "dataplane/routing/least_loaded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace millrace::dataplane::routing {
namespace {

WorkerSnapshot idle() { return {.is_accepting = true, .kv_blocks_total = 100}; }

TEST(LeastLoaded, NobodyToAskIsNullopt) {
  EXPECT_EQ(pick_prefill_worker({}, {}), std::nullopt);
  EXPECT_EQ(pick_decode_worker({}, 0, {}), std::nullopt);
  std::vector<WorkerSnapshot> workers = {idle()};
  workers[0].is_accepting = false;
  EXPECT_EQ(pick_prefill_worker({}, workers), std::nullopt);
  EXPECT_EQ(pick_decode_worker({}, 0, workers), std::nullopt);
}

TEST(LeastLoaded, ARequestThatFitsNoPoolIsNullopt) {
  const std::vector<WorkerSnapshot> workers = {idle(), idle()};
  EXPECT_EQ(pick_prefill_worker({.kv_blocks = 101}, workers), std::nullopt);
  EXPECT_EQ(pick_decode_worker({.kv_blocks = 101}, 0, workers), std::nullopt);
  EXPECT_EQ(pick_decode_worker({.kv_blocks = 100}, 0, workers), 0u);
}

TEST(LeastLoaded, TiesGoToTheLowerIndex) {
  std::vector<WorkerSnapshot> workers = {idle(), idle(), idle()};
  EXPECT_EQ(pick_prefill_worker({}, workers), 0u);
  EXPECT_EQ(pick_decode_worker({}, 0, workers), 0u);
  workers[0].is_accepting = false;
  EXPECT_EQ(pick_prefill_worker({}, workers), 1u);
  EXPECT_EQ(pick_decode_worker({}, 0, workers), 1u);
}

TEST(LeastLoaded, PrefillCountsTokensAheadThenRequests) {
  std::vector<WorkerSnapshot> workers = {idle(), idle(), idle()};
  workers[0].waiting_tokens = 10;
  workers[1].charged_tokens = 5;
  workers[1].running = 9;
  workers[2].waiting_tokens = 5;
  workers[2].running = 8;
  EXPECT_EQ(pick_prefill_worker({}, workers), 2u);
  workers[2].charged_requests = 2;
  EXPECT_EQ(pick_prefill_worker({}, workers), 1u);
}

TEST(LeastLoaded, DecodePrefersRoomThenFollowsTheRule) {
  std::vector<WorkerSnapshot> workers = {idle(), idle(), idle()};
  workers[0].kv_blocks_used = 95;
  workers[0].kv_tokens = 95 * 128;
  workers[1].running = 4;
  workers[1].kv_tokens = 20'000;
  workers[2].running = 4;
  workers[2].charged_tokens = 2'000;
  // A short one goes where fewest run as long as it has room there and the KV is not too long.
  EXPECT_EQ(pick_decode_worker({.tokens = 10, .kv_blocks = 5}, 10, workers), 2U);
  workers[0].kv_tokens = 5'000;
  EXPECT_EQ(pick_decode_worker({.tokens = 10, .kv_blocks = 5}, 10, workers), 0U);
  EXPECT_EQ(pick_decode_worker({.tokens = 10, .kv_blocks = 10}, 10, workers), 2U);
  // A long one goes where the KV is shortest.
  EXPECT_EQ(pick_decode_worker({.tokens = 12'000, .kv_blocks = 5}, 12'000, workers), 2U);
  // All must wait: the rule again, among those whose pool could hold it.
  for (WorkerSnapshot& worker : workers) worker.kv_blocks_used = 95;
  EXPECT_EQ(pick_decode_worker({.tokens = 10, .kv_blocks = 50}, 10, workers), 0U);
  workers[0].kv_blocks_total = 40;
  EXPECT_EQ(pick_decode_worker({.tokens = 10, .kv_blocks = 50}, 10, workers), 2U);
}

// Charging each decision at once spreads a burst evenly, without any report in between.
TEST(LeastLoaded, ChargesSpreadABurstEvenly) {
  std::mt19937 random(20250131);
  for (int round = 0; round < 50; ++round) {
    const std::size_t count = 1 + random() % 8;
    std::vector<WorkerSnapshot> workers(count, idle());
    for (int i = 0; i < 200; ++i) {
      const auto picked = pick_decode_worker({.tokens = 1, .kv_blocks = 1}, 1, workers);
      ASSERT_TRUE(picked.has_value());
      workers[*picked].charged_requests += 1;
      workers[*picked].charged_tokens += 1;
      const auto [low, high] = std::minmax_element(
          workers.begin(), workers.end(), [](const WorkerSnapshot& a, const WorkerSnapshot& b) {
            return a.charged_requests < b.charged_requests;
          });
      ASSERT_LE(high->charged_requests - low->charged_requests, 1u);
    }
  }
}

}  // namespace
}  // namespace millrace::dataplane::routing
