#include "storage/kv/check_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace millrace::storage::kv {
namespace {

struct Outcome {
  std::size_t hit_blocks = 0;
  int rounds = 0;
  std::size_t first_seen_absent = SIZE_MAX;
  std::vector<std::uint32_t> asked;
};

/// Plays a plan against blocks of which `exists` tells which there are, when it is asked.
template <typename Exists>
Outcome play(std::size_t block_count, Exists exists) {
  CheckPlan plan(block_count);
  Outcome outcome;
  for (auto keys = plan.next(); !keys.empty(); keys = plan.next()) {
    EXPECT_LE(keys.size(), CheckPlan::kKeysPerRound);
    EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
    std::vector<bool> present;
    for (const std::uint32_t key : keys) {
      EXPECT_LT(key, block_count);
      present.push_back(exists(key));
      if (!present.back())
        outcome.first_seen_absent = std::min<std::size_t>(outcome.first_seen_absent, key);
      outcome.asked.push_back(key);
    }
    plan.answer(present);
  }
  outcome.hit_blocks = plan.hit_blocks();
  outcome.rounds = plan.rounds();
  return outcome;
}

TEST(CheckPlan, FindsEveryHitLengthOfEveryChain) {
  for (const std::size_t blocks : {0, 1, 2, 7, 8, 9, 31, 32, 33, 34, 65, 100, 1088, 1089, 1090}) {
    for (std::size_t hit = 0; hit <= blocks; ++hit) {
      const Outcome outcome = play(blocks, [&](std::size_t i) { return i < hit; });
      ASSERT_EQ(outcome.hit_blocks, hit) << "of " << blocks;
      ASSERT_LE(outcome.rounds, 4);
    }
  }
}

TEST(CheckPlan, TakesThreeRoundsAndAConfirmationForAMillionTokens) {
  constexpr std::size_t kBlocks = 1000000 / 128;
  ASSERT_EQ(kBlocks, 7812U);
  for (std::size_t hit = 0; hit <= kBlocks; ++hit) {
    const Outcome outcome = play(kBlocks, [&](std::size_t i) { return i < hit; });
    ASSERT_EQ(outcome.hit_blocks, hit);
    ASSERT_LE(outcome.rounds, 4);
  }
}

TEST(CheckPlan, AsksOfAShortPromptOnce) {
  for (std::size_t blocks = 1; blocks <= 32; ++blocks)
    for (std::size_t hit = 0; hit <= blocks; ++hit)
      ASSERT_EQ(play(blocks, [&](std::size_t i) { return i < hit; }).rounds, 1);
}

TEST(CheckPlan, ConfirmsTheLastBlocks) {
  const Outcome outcome = play(7812, [](std::size_t i) { return i < 5000; });
  for (std::uint32_t i = 5000 - CheckPlan::kConfirmedBlocks; i < 5000; ++i)
    EXPECT_NE(std::find(outcome.asked.begin(), outcome.asked.end(), i), outcome.asked.end()) << i;
}

TEST(CheckPlan, AHoleBeforeTheEndIsSeen) {
  for (std::uint32_t back = 1; back <= CheckPlan::kConfirmedBlocks; ++back) {
    const Outcome outcome =
        play(7812, [&](std::size_t i) { return i < 5000 && i != 5000U - back; });
    EXPECT_EQ(outcome.hit_blocks, 5000U - back);
  }
}

// Whatever is answered, also answers that change: no more than what was seen allows, in bounded
// rounds, and the last block of the hit was there when it was asked for.
TEST(CheckPlan, NeverExceedsWhatWasSeen) {
  for (std::uint32_t seed = 0; seed < 20000; ++seed) {
    std::mt19937 random(seed);
    const std::size_t blocks = random() % 9000;
    const auto percent = random() % 101;
    std::vector<std::uint32_t> present;
    const Outcome outcome = play(blocks, [&](std::size_t i) {
      const bool is_there = random() % 100 < percent;
      if (is_there) present.push_back(static_cast<std::uint32_t>(i));
      return is_there;
    });
    ASSERT_LE(outcome.hit_blocks, std::min(blocks, outcome.first_seen_absent)) << "seed " << seed;
    ASSERT_LE(outcome.rounds, 4) << "seed " << seed;
    if (outcome.hit_blocks > 0 && outcome.hit_blocks != outcome.first_seen_absent) {
      ASSERT_NE(std::find(present.begin(), present.end(), outcome.hit_blocks - 1), present.end())
          << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace millrace::storage::kv
