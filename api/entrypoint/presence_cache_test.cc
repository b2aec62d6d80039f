#include "api/entrypoint/presence_cache.h"

#include <gtest/gtest.h>

#include <cstring>

namespace millrace::api::entrypoint {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kNow = TimePoint(1h);

storage::BlockKey key(int number) {
  storage::BlockKey made;
  std::memcpy(made.bytes.data(), &number, sizeof(number));
  return made;
}

TEST(PresenceCache, ForgetsABlockWhenItsTimeIsOver) {
  PresenceCache cache({.keys = 8, .life = 10s});
  cache.add(key(1), kNow);
  EXPECT_TRUE(cache.contains(key(1), kNow + 9999ms));
  EXPECT_FALSE(cache.contains(key(1), kNow + 10s));
  EXPECT_FALSE(cache.contains(key(2), kNow));
}

TEST(PresenceCache, ABlockThatIsSeenAgainStaysLonger) {
  PresenceCache cache({.keys = 8, .life = 10s});
  cache.add(key(1), kNow);
  cache.add(key(1), kNow + 6s);
  cache.add(key(2), kNow + 12s);
  EXPECT_TRUE(cache.contains(key(1), kNow + 15s));
}

TEST(PresenceCache, HoldsNoMoreThanItsLimitAndDropsTheOldest) {
  PresenceCache cache({.keys = 4, .life = 10s});
  for (int i = 0; i < 100; ++i) cache.add(key(i), kNow + i * 1ms);
  EXPECT_EQ(cache.size(), 4U);
  EXPECT_FALSE(cache.contains(key(95), kNow + 100ms));
  EXPECT_TRUE(cache.contains(key(96), kNow + 100ms));
  // The same one again and again fills no place twice for ever.
  for (int i = 0; i < 100; ++i) cache.add(key(7), kNow + 200ms);
  EXPECT_LE(cache.size(), 4U);
  EXPECT_TRUE(cache.contains(key(7), kNow + 201ms));
}

}  // namespace
}  // namespace millrace::api::entrypoint
