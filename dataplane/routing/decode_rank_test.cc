#include "dataplane/routing/decode_rank.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "dataplane/routing/vision.h"

namespace millrace::dataplane::routing {
namespace {

constexpr std::int64_t kAmple = 1 << 30;

TEST(PickDecodeRank, FollowsThePublishedExample) {
  // Two requests of 2k and 50k wait; DualPath's rule as restated with this example: the mark is
  // 81.9k for both, the short one goes where few run, the long one where KV is short.
  std::vector<DecodeRank> ranks = {
      {3, 90'000, kAmple}, {9, 60'000, kAmple}, {12, 40'000, kAmple}, {6, 70'000, kAmple}};
  EXPECT_DOUBLE_EQ(high_token_mark(52'000, totals_of(ranks)), 81'900);
  EXPECT_EQ(pick_decode_rank({2'000, 2'000}, 52'000, totals_of(ranks), ranks), 3U);
  ranks[3].requests += 1;
  ranks[3].kv_tokens += 2'000;
  EXPECT_DOUBLE_EQ(high_token_mark(50'000, totals_of(ranks)), 81'900);
  EXPECT_EQ(pick_decode_rank({50'000, 50'000}, 50'000, totals_of(ranks), ranks), 2U);
}

TEST(PickDecodeRank, CountsWhatWaitsOnlyAsFarAsItFits) {
  const std::vector<DecodeRank> ranks = {{1, 1'000, 500}, {1, 3'000, 1'500}};
  EXPECT_DOUBLE_EQ(high_token_mark(1'000, totals_of(ranks)), 1.05 * 5'000 / 2);
  EXPECT_DOUBLE_EQ(high_token_mark(1'000'000, totals_of(ranks)), 1.05 * 6'000 / 2);
}

TEST(PickDecodeRank, LeavesOutWhatHasNoRoomOrAcceptsNothing) {
  std::vector<DecodeRank> ranks = {{0, 0, 99}, {5, 5'000, 1'000}, {1, 10, kAmple, false}};
  EXPECT_EQ(pick_decode_rank({100, 100}, 100, totals_of(ranks), ranks), 1U);
  EXPECT_EQ(pick_decode_rank({1'001, 1'001}, 1'001, totals_of(ranks), ranks), std::nullopt);
  ranks[1].is_accepting = false;
  EXPECT_EQ(pick_decode_rank({100, 100}, 100, totals_of(ranks), ranks), std::nullopt);
  EXPECT_EQ(pick_decode_rank({1, 1}, 1, {}, {}), std::nullopt);
}

/// The rule in its own words, without one pass over the ranks.
std::optional<std::size_t> by_the_words(std::int64_t length, double mark,
                                        const std::vector<DecodeRank>& ranks) {
  std::vector<std::size_t> with_room;
  std::vector<std::size_t> below;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (!ranks[i].is_accepting || ranks[i].free_kv_tokens < length) continue;
    with_room.push_back(i);
    if (static_cast<double>(ranks[i].kv_tokens + length) <= mark) below.push_back(i);
  }
  const auto first_with_least = [&](const std::vector<std::size_t>& among, auto score) {
    std::optional<std::size_t> best;
    for (const std::size_t i : among) {
      if (!best || score(ranks[i]) < score(ranks[*best])) best = i;
    }
    return best;
  };
  if (!below.empty())
    return first_with_least(below, [](const DecodeRank& r) { return r.requests; });
  return first_with_least(with_room, [](const DecodeRank& r) { return r.kv_tokens; });
}

TEST(PickDecodeRank, AgreesWithTheRuleInItsOwnWords) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 5'000; ++round) {
    std::vector<DecodeRank> ranks(1 + random() % 9);
    for (DecodeRank& rank : ranks) {
      rank = {static_cast<std::int64_t>(random() % 5), static_cast<std::int64_t>(random() % 50),
              static_cast<std::int64_t>(random() % 50), random() % 6 != 0};
    }
    const auto length = static_cast<std::int64_t>(1 + random() % 40);
    const auto pending = length + static_cast<std::int64_t>(random() % 100);
    const DecodeTotals totals = totals_of(ranks);
    ASSERT_EQ(pick_decode_rank({length, length}, pending, totals, ranks),
              by_the_words(length, high_token_mark(pending, totals), ranks));
  }
}

TEST(DecodeRank, RoomIsForAllThatARequestMayComeToHold) {
  const std::vector<DecodeRank> ranks = {{0, 0, 127}, {5, 10, 128}};
  EXPECT_EQ(pick_decode_rank({5, 127}, 5, totals_of(ranks), ranks), 0U);
  EXPECT_EQ(pick_decode_rank({5, 128}, 5, totals_of(ranks), ranks), 1U);
}

TEST(DecodeRank, WaitsWhereItCouldEverBe) {
  const std::vector<DecodeRank> ranks = {
      {3, 90, 10, true, 100}, {2, 95, 5, true, 100}, {0, 40, 0, true, 40}, {0, 0, 500, false, 500}};
  const DecodeTotals totals = totals_of(ranks);
  EXPECT_EQ(pick_decode_rank({20, 50}, 20, totals, ranks), std::nullopt);
  EXPECT_EQ(pick_decode_rank_to_wait({20, 50}, 20, totals, ranks), 0U);
  EXPECT_EQ(pick_decode_rank_to_wait({20, 40}, 20, totals, ranks), 2U);
  EXPECT_EQ(pick_decode_rank_to_wait({20, 101}, 20, totals, ranks), std::nullopt);
}

TEST(DecodeBoard, KeepsTheSumsOfItsRanks) {
  std::mt19937_64 random(5);
  DecodeBoard board;
  EXPECT_EQ(pick_decode_rank({1, 1}, 1, board.totals(), board.ranks()), std::nullopt);
  for (int change = 0; change < 2'000; ++change) {
    const auto value = [&] { return static_cast<std::int64_t>(random() % 1'000) - 100; };
    board.set(random() % 20, {std::abs(value()), std::abs(value()), value(), random() % 3 != 0});
    const DecodeTotals sums = totals_of(board.ranks());
    ASSERT_EQ(board.totals().ranks, sums.ranks);
    ASSERT_EQ(board.totals().kv_tokens, sums.kv_tokens);
    ASSERT_EQ(board.totals().free_kv_tokens, sums.free_kv_tokens);
  }
}

TEST(Vision, CountsPatchesOfPartsToo) {
  EXPECT_EQ(patches_of(28, 28, 14), 4);
  EXPECT_EQ(patches_of(29, 28, 14), 6);
  EXPECT_EQ(patches_of(1, 1, 14), 1);
  EXPECT_EQ(patches_of(0, 28, 14), 0);
}

TEST(Vision, TakesAnyMachineAndThereTheFreestGpu) {
  const std::vector<std::int64_t> busy = {50, 20, 20};
  const std::vector<std::int64_t> idle = {5, 0};
  const std::vector<EncoderMachine> machines = {{busy}, {idle, false}, {{}}, {idle}};
  std::vector<int> chosen(machines.size());
  for (std::uint64_t bits = 0; bits < 100; ++bits) {
    const auto choice = pick_encoder(machines, bits);
    ASSERT_TRUE(choice.has_value());
    ++chosen[choice->machine];
    EXPECT_EQ(choice->gpu, 1U);
  }
  EXPECT_EQ(chosen, (std::vector<int>{50, 0, 0, 50}));
  EXPECT_FALSE(pick_encoder({}, 1).has_value());
}

TEST(DecodeRank, LooksAtSoManyWithRoomOnly) {
  const std::vector<DecodeRank> ranks = {{5, 10, 100}, {0, 10, 1}, {4, 10, 100}, {3, 10, 100}};
  const DecodeTotals totals = totals_of(ranks);
  EXPECT_EQ(pick_decode_rank({5, 5}, 1000, totals, ranks, {.first = 0, .most = 1}), 0U);
  EXPECT_EQ(pick_decode_rank({5, 5}, 1000, totals, ranks, {.first = 0, .most = 2}), 2U);
  EXPECT_EQ(pick_decode_rank({5, 5}, 1000, totals, ranks, {.first = 1, .most = 1}), 2U);
  EXPECT_EQ(pick_decode_rank({5, 5}, 1000, totals, ranks, {.first = 3, .most = 2}), 3U);
}

TEST(DecodeRank, EqualScoresGoToTheNextFromWhereTheCallerBegins) {
  const std::vector<DecodeRank> ranks = {{1, 10, 100}, {1, 10, 100}, {1, 10, 100}, {0, 10, 1}};
  for (std::size_t first = 0; first < 9; ++first) {
    const std::size_t expected = first % 4 == 3 ? 0 : first % 4;
    EXPECT_EQ(pick_decode_rank({5, 5}, 5, totals_of(ranks), ranks, {.first = first}), expected);
  }
  EXPECT_EQ(pick_decode_rank({5, 5}, 5, {}, {}, {.first = 3}), std::nullopt);
}

}  // namespace
}  // namespace millrace::dataplane::routing
