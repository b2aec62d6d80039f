#include "storage/swa/directory_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "common/str_cat.h"

namespace millrace::storage::swa {
namespace {

std::vector<BlockKey> random_keys(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::vector<BlockKey> keys(count);
  for (BlockKey& key : keys) {
    for (std::uint8_t& byte : key.bytes) byte = static_cast<std::uint8_t>(random());
  }
  return keys;
}

std::vector<std::string> ids(int count) {
  std::vector<std::string> names;
  names.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) names.push_back(str_cat("entrypoint-", i));
  return names;
}

TEST(DirectoryRing, EveryEntrypointHasAboutItsShare) {
  const auto keys = random_keys(1, 20000);
  for (const int count : {1, 2, 3, 7, 16}) {
    const DirectoryRing ring(ids(count));
    std::map<std::string, int> shares;
    for (const BlockKey& key : keys) ++shares[ring.owner_of(key)];
    ASSERT_EQ(shares.size(), static_cast<std::size_t>(count));
    const double fair = 20000.0 / count;
    for (const auto& [id, share] : shares) {
      EXPECT_NEAR(share, fair, 6 * std::sqrt(fair)) << id << " of " << count;
    }
  }
}

TEST(DirectoryRing, OneThatJoinsOrLeavesMovesOnlyItsShare) {
  const auto keys = random_keys(2, 5000);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    std::mt19937_64 random(seed);
    std::vector<std::string> before = ids(2 + static_cast<int>(random() % 10));
    std::vector<std::string> after = before;
    const std::size_t leaver = random() % before.size();
    after.erase(after.begin() + static_cast<std::ptrdiff_t>(leaver));
    const std::string changed = before[leaver];
    std::shuffle(before.begin(), before.end(), random);  // the order is of no consequence
    const DirectoryRing with(before);
    const DirectoryRing without(after);
    for (const BlockKey& key : keys) {
      if (with.owner_of(key) == changed) {
        ASSERT_NE(without.owner_of(key), changed);
      } else {
        ASSERT_EQ(with.owner_of(key), without.owner_of(key));
      }
    }
  }
}

TEST(DirectoryRing, ANewEntrypointsKeysComeFromAllOthers) {
  const auto keys = random_keys(3, 20000);
  const DirectoryRing before(ids(5));
  const DirectoryRing after(ids(6));
  std::map<std::string, int> moved_from;
  for (const BlockKey& key : keys) {
    if (after.owner_of(key) == "entrypoint-5") ++moved_from[before.owner_of(key)];
  }
  EXPECT_EQ(moved_from.size(), 5u);
  for (const auto& [id, count] : moved_from) EXPECT_NEAR(count, 20000.0 / 30, 160) << id;
}

TEST(DirectoryRing, KnowsWhenNobodyIsThere) {
  EXPECT_TRUE(DirectoryRing({}).is_empty());
  EXPECT_FALSE(DirectoryRing({"a"}).is_empty());
}

}  // namespace
}  // namespace millrace::storage::swa
