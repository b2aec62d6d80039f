#include "storage/map/storage_map.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>

#include "common/str_cat.h"
#include "storage/map/map_plan.h"

namespace millrace::storage {
namespace {

StorageMap map_of(int nodes, int targets_per_node, int k = 10, int m = 2) {
  StorageMap map;
  map.cluster_id = "c1";
  map.data_shards = k;
  map.parity_shards = m;
  map.block_bytes = 113920;
  for (int node = 0; node < nodes; ++node) {
    StorageNodeOffer offer{str_cat("storage-", node), str_cat("10.0.0.", node, ":7000"), {}};
    for (int target = 0; target < targets_per_node; ++target) {
      offer.target_ids.push_back(str_cat("storage-", node, "/", target));
    }
    map = **add_node(map, offer);
  }
  return *form_groups(map, 0);
}

BlockKey random_key(std::mt19937_64& random) {
  BlockKey key;
  for (auto& byte : key.bytes) byte = static_cast<std::uint8_t>(random());
  return key;
}

TEST(StorageMap, JsonReadsBack) {
  StorageMap map = map_of(13, 2);
  map.groups[0].members[3].state = MemberState::kDown;
  map.groups[1].members[0].state = MemberState::kRebuilding;
  const absl::StatusOr<StorageMap> read = decode_map(encode_map(map));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, map);
}

TEST(StorageMap, BrokenRulesAreNamed) {
  const struct {
    std::function<void(StorageMap&)> damage;
    const char* named;
  } cases[] = {
      {[](StorageMap& map) { map.cluster_id.clear(); }, "cluster_id"},
      {[](StorageMap& map) { map.data_shards = 0; }, "data_shards 0"},
      {[](StorageMap& map) { map.parity_shards = 40; }, "parity_shards 40"},
      {[](StorageMap& map) { map.block_bytes = 0; }, "block_bytes 0"},
      {[](StorageMap& map) { map.nodes[1].id = map.nodes[0].id; }, "occurs twice"},
      {[](StorageMap& map) { map.targets[1].id = map.targets[0].id; }, "occurs twice"},
      {[](StorageMap& map) { map.targets[1].node_id = "nowhere"; }, "nowhere"},
      {[](StorageMap& map) { map.groups[0].members.pop_back(); }, "has 11 members"},
      {[](StorageMap& map) { map.groups[0].members[2].target_id = "ghost"; }, "ghost"},
      {[](StorageMap& map) { map.groups[0].members[2] = map.groups[0].members[1]; },
       "a member twice"},
  };
  for (const auto& broken : cases) {
    StorageMap map = map_of(12, 1);
    ASSERT_TRUE(validate(map).ok());
    broken.damage(map);
    const absl::Status status = validate(map);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(message_of(status).find(broken.named), std::string_view::npos) << status;
  }
}

TEST(StorageMap, FieldsOfTheWrongKindAreNamed) {
  std::string text = encode_map(map_of(12, 1));
  const std::string good = "\"state\":\"up\"";
  text.replace(text.find(good), good.size(), "\"state\":\"fine\"");
  const absl::StatusOr<StorageMap> read = decode_map(text);
  ASSERT_FALSE(read.ok());
  EXPECT_NE(message_of(read.status()).find("groups[0].members[0].state"), std::string_view::npos)
      << read.status();
}

TEST(StorageMap, KeysSpreadEvenlyOverGroups) {
  const StorageMap map = map_of(24, 4);
  ASSERT_EQ(map.groups.size(), 8U);
  std::map<std::uint32_t, int> counts;
  std::mt19937_64 random(1);
  constexpr int kKeysPerGroup = 10000;
  for (int i = 0; i < 8 * kKeysPerGroup; ++i) ++counts[group_of(map, random_key(random)).id];
  ASSERT_EQ(counts.size(), 8U);
  for (const auto& [id, count] : counts) EXPECT_NEAR(count, kKeysPerGroup, 500) << id;
}

// What rendezvous hashing is for: a key moves to the new group or stays.
TEST(StorageMap, ANewGroupTakesItsShareAndNothingElseMoves) {
  const StorageMap before = map_of(12, 3);
  StorageMap after = before;
  after.groups.push_back({77, {}});
  std::mt19937_64 random(2);
  int moved = 0;
  for (int i = 0; i < 20000; ++i) {
    const BlockKey key = random_key(random);
    const std::uint32_t group = group_of(after, key).id;
    if (group != group_of(before, key).id) {
      EXPECT_EQ(group, 77U);
      ++moved;
    }
  }
  EXPECT_NEAR(moved, 5000, 300);
}

TEST(StorageMap, TheOrderOfGroupsDoesNotMatter) {
  const StorageMap map = map_of(12, 3);
  StorageMap reversed = map;
  std::reverse(reversed.groups.begin(), reversed.groups.end());
  std::mt19937_64 random(3);
  for (int i = 0; i < 1000; ++i) {
    const BlockKey key = random_key(random);
    EXPECT_EQ(group_of(map, key).id, group_of(reversed, key).id);
  }
}

TEST(StorageMap, PlacementByIdsAloneIsThatOfTheMap) {
  const StorageMap map = map_of(24, 4);
  const Placement placement(map);
  std::mt19937_64 random(4);
  for (int i = 0; i < 1000; ++i) {
    const BlockKey key = random_key(random);
    EXPECT_EQ(placement.group_id_of(key), group_of(map, key).id);
  }
  EXPECT_EQ(Placement(StorageMap()).group_id_of(BlockKey()), std::nullopt);
}

TEST(StorageMap, TheFirstMemberThatIsUpOwnsEviction) {
  StorageMap map = map_of(12, 1);
  Group& group = map.groups[0];
  EXPECT_EQ(owner_of(group), 0);
  group.members[0].state = MemberState::kRebuilding;
  group.members[1].state = MemberState::kDown;
  EXPECT_EQ(owner_of(group), 2);
  for (Member& member : group.members) member.state = MemberState::kDown;
  EXPECT_EQ(owner_of(group), std::nullopt);
}

}  // namespace
}  // namespace millrace::storage
