#include "storage/kv/eviction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace millrace::storage::kv {
namespace {

TEST(Eviction, AgentsHaveThreeDaysAndChatbotsSeven) {
  constexpr std::uint32_t kDay = 24 * 60;
  EXPECT_FALSE(is_expired(100, TtlClass::kAgent, 100 + 3 * kDay - 1));
  EXPECT_TRUE(is_expired(100, TtlClass::kAgent, 100 + 3 * kDay));
  EXPECT_FALSE(is_expired(100, TtlClass::kChatbot, 100 + 7 * kDay - 1));
  EXPECT_TRUE(is_expired(100, TtlClass::kChatbot, 100 + 7 * kDay));
}

TEST(Eviction, ATouchAheadOfTheClockIsFresh) {
  EXPECT_FALSE(is_expired(5000, TtlClass::kAgent, 0));
  EXPECT_FALSE(is_expired(UINT32_MAX, TtlClass::kAgent, 4319));
}

TEST(Eviction, TheLongerClassWins) {
  for (const TtlClass a : {TtlClass::kAgent, TtlClass::kChatbot})
    for (const TtlClass b : {TtlClass::kAgent, TtlClass::kChatbot})
      EXPECT_EQ(longer_ttl(a, b), a == b ? a : TtlClass::kChatbot);
  const TtlPolicy upside_down{.agent_minutes = 10, .chatbot_minutes = 5};
  EXPECT_EQ(longer_ttl(TtlClass::kAgent, TtlClass::kChatbot, upside_down), TtlClass::kAgent);
}

BlockKey key_of(std::uint8_t first) {
  BlockKey key;
  key.bytes[0] = first;
  return key;
}

TEST(Eviction, OldestMinuteThenDeepestThenKey) {
  std::vector<EvictionAge> ordered = {
      {.touch_minute = 1, .depth = 0, .key = key_of(9)},
      {.touch_minute = 2, .depth = 7, .key = key_of(1)},
      {.touch_minute = 2, .depth = 7, .key = key_of(2)},
      {.touch_minute = 2, .depth = 3, .key = key_of(0)},
      {.touch_minute = 3, .depth = 99, .key = key_of(0)},
  };
  std::vector<EvictionAge> shuffled = ordered;
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    std::sort(shuffled.begin(), shuffled.end(), goes_before);
    ASSERT_EQ(shuffled, ordered);
  }
}

TEST(Eviction, FreesFromTheStartMarkDownToTheStopMark) {
  const Watermarks marks{.start = 0.9, .stop = 0.8, .emergency = 0.97};
  EXPECT_EQ(slots_to_free(0, 0, 1000, marks), 0U);
  EXPECT_EQ(slots_to_free(900, 0, 1000, marks), 0U);
  EXPECT_EQ(slots_to_free(901, 0, 1000, marks), 101U);
  EXPECT_EQ(slots_to_free(1000, 0, 1000, marks), 200U);
  // What is leaving already is not freed once more.
  EXPECT_EQ(slots_to_free(1000, 150, 1000, marks), 50U);
  EXPECT_EQ(slots_to_free(1000, 200, 1000, marks), 0U);
  EXPECT_EQ(slots_to_free(950, 950, 1000, marks), 0U);
  EXPECT_EQ(slots_to_free(0, 0, 0, marks), 0U);
}

TEST(Eviction, EmergencyIsAboveItsMark) {
  const Watermarks marks;
  EXPECT_FALSE(is_emergency(970, 1000, marks));
  EXPECT_TRUE(is_emergency(971, 1000, marks));
}

TEST(Eviction, MarksAreOrdered) {
  EXPECT_TRUE(Watermarks{}.is_valid());
  EXPECT_TRUE((Watermarks{.start = 1, .stop = 1, .emergency = 1}.is_valid()));
  EXPECT_FALSE((Watermarks{.start = 0.8, .stop = 0.9, .emergency = 0.97}.is_valid()));
  EXPECT_FALSE((Watermarks{.start = 0.9, .stop = 0.8, .emergency = 0.85}.is_valid()));
  EXPECT_FALSE((Watermarks{.start = 0.9, .stop = 0, .emergency = 0.97}.is_valid()));
  EXPECT_FALSE((Watermarks{.start = 0.9, .stop = 0.8, .emergency = 1.01}.is_valid()));
}

}  // namespace
}  // namespace millrace::storage::kv
