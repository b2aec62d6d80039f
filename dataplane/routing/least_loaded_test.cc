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
  EXPECT_EQ(pick_decode_worker({}, {}), std::nullopt);
  std::vector<WorkerSnapshot> workers = {idle()};
  workers[0].is_accepting = false;
  EXPECT_EQ(pick_prefill_worker({}, workers), std::nullopt);
  EXPECT_EQ(pick_decode_worker({}, workers), std::nullopt);
}

TEST(LeastLoaded, ARequestThatFitsNoPoolIsNullopt) {
  const std::vector<WorkerSnapshot> workers = {idle(), idle()};
  EXPECT_EQ(pick_prefill_worker({.kv_blocks = 101}, workers), std::nullopt);
  EXPECT_EQ(pick_decode_worker({.kv_blocks = 101}, workers), std::nullopt);
  EXPECT_EQ(pick_decode_worker({.kv_blocks = 100}, workers), 0u);
}

TEST(LeastLoaded, TiesGoToTheLowerIndex) {
  std::vector<WorkerSnapshot> workers = {idle(), idle(), idle()};
  EXPECT_EQ(pick_prefill_worker({}, workers), 0u);
  EXPECT_EQ(pick_decode_worker({}, workers), 0u);
  workers[0].is_accepting = false;
  EXPECT_EQ(pick_prefill_worker({}, workers), 1u);
  EXPECT_EQ(pick_decode_worker({}, workers), 1u);
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

TEST(LeastLoaded, DecodePrefersRoomThenFewRequestsThenFreeBlocks) {
  std::vector<WorkerSnapshot> workers = {idle(), idle(), idle()};
  workers[0].kv_blocks_used = 95;
  workers[1].running = 4;
  workers[2].running = 4;
  workers[1].kv_blocks_used = 20;
  workers[2].charged_kv_blocks = 10;
  EXPECT_EQ(pick_decode_worker({.kv_blocks = 10}, workers), 2u);
  EXPECT_EQ(pick_decode_worker({.kv_blocks = 5}, workers), 0u);
  // All must wait: the fewest requests again.
  EXPECT_EQ(pick_decode_worker({.kv_blocks = 95}, workers), 0u);
}

// Charging each decision at once spreads a burst evenly, without any report in between.
TEST(LeastLoaded, ChargesSpreadABurstEvenly) {
  std::mt19937 random(20250131);
  for (int round = 0; round < 50; ++round) {
    const std::size_t count = 1 + random() % 8;
    std::vector<WorkerSnapshot> workers(count, idle());
    for (int i = 0; i < 200; ++i) {
      const auto picked = pick_decode_worker({.tokens = 1, .kv_blocks = 1}, workers);
      ASSERT_TRUE(picked.has_value());
      workers[*picked].charged_requests += 1;
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
