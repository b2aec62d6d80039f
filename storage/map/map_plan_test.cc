#include "storage/map/map_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "common/str_cat.h"

namespace millrace::storage {
namespace {

StorageMap empty_map(int k, int m) {
  StorageMap map;
  map.cluster_id = "c1";
  map.data_shards = k;
  map.parity_shards = m;
  map.block_bytes = 4096;
  return map;
}

StorageNodeOffer offer(int node, int targets) {
  StorageNodeOffer offered{str_cat("n", node), str_cat("host", node, ":1"), {}};
  for (int target = 0; target < targets; ++target) {
    offered.target_ids.push_back(str_cat("n", node, "-", target));
  }
  return offered;
}

StorageMap with_nodes(StorageMap map, int nodes, int targets) {
  for (int node = 0; node < nodes; ++node) map = **add_node(map, offer(node, targets));
  return map;
}

/// Most members of one group on one node.
int most_on_one_node(const StorageMap& map) {
  int most = 0;
  for (const Group& group : map.groups) {
    std::map<std::string, int> count;
    for (const Member& member : group.members) {
      most = std::max(most, ++count[map.find_target(member.target_id)->node_id]);
    }
  }
  return most;
}

TEST(MapPlan, ANodeIsAddedOnceAndChangesItsAddress) {
  const StorageMap map = with_nodes(empty_map(2, 1), 1, 3);
  EXPECT_EQ(map.epoch, 1U);
  EXPECT_FALSE(add_node(map, offer(0, 3))->has_value());
  StorageNodeOffer moved = offer(0, 3);
  moved.address = "elsewhere:9";
  const StorageMap next = **add_node(map, moved);
  EXPECT_EQ(next.epoch, 2U);
  EXPECT_EQ(next.address_of("n0-1"), "elsewhere:9");
}

TEST(MapPlan, ATargetOfAnotherNodeIsRefusedWithBothNamed) {
  const StorageMap map = with_nodes(empty_map(2, 1), 1, 3);
  StorageNodeOffer thief = offer(1, 1);
  thief.target_ids = {"n0-2"};
  const auto result = add_node(map, thief);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(message_of(result.status()).find("n0-2 of node n1"), std::string_view::npos);
  EXPECT_NE(message_of(result.status()).find("node n0"), std::string_view::npos);
}

TEST(MapPlan, GroupsSpreadOverNodes) {
  // One target a node at a time: 12 nodes of any number of targets lose one member with a node.
  for (int targets : {1, 2, 5}) {
    const StorageMap map = *form_groups(with_nodes(empty_map(10, 2), 12, targets), 0);
    EXPECT_EQ(map.groups.size(), static_cast<std::size_t>(targets));
    EXPECT_EQ(most_on_one_node(map), 1);
    EXPECT_TRUE(validate(map).ok());
  }
  EXPECT_EQ(most_on_one_node(*form_groups(with_nodes(empty_map(10, 2), 6, 4), 0)), 2);
  EXPECT_EQ(most_on_one_node(*form_groups(with_nodes(empty_map(10, 2), 1, 12), 0)), 12);
}

TEST(MapPlan, SparesAreKept) {
  const StorageMap map = with_nodes(empty_map(10, 2), 13, 1);
  EXPECT_FALSE(form_groups(map, 2).has_value());
  const StorageMap grouped = *form_groups(map, 1);
  EXPECT_EQ(grouped.groups.size(), 1U);
  EXPECT_EQ(spares_of(grouped).size(), 1U);
  EXPECT_FALSE(form_groups(grouped, 0).has_value());
}

TEST(MapPlan, DeadNodesGoDownAndComeBackToRebuild) {
  const StorageMap map = *form_groups(with_nodes(empty_map(2, 1), 3, 1), 0);
  EXPECT_FALSE(set_dead_nodes(map, {}).has_value());
  const StorageMap down = *set_dead_nodes(map, {"n1"});
  const auto place = *down.place_of("n1-0");
  EXPECT_EQ(down.groups[0].members[place.shard_index].state, MemberState::kDown);
  EXPECT_FALSE(set_rebuilt(down, "n1-0").has_value());
  const StorageMap back = *set_dead_nodes(down, {});
  EXPECT_EQ(back.groups[0].members[place.shard_index].state, MemberState::kRebuilding);
  const StorageMap whole = *set_rebuilt(back, "n1-0");
  EXPECT_EQ(whole.groups[0], map.groups[0]);
  EXPECT_EQ(whole.epoch, map.epoch + 3);
}

TEST(MapPlan, ASpareOnAnotherNodeTakesThePlace) {
  StorageMap map = *form_groups(with_nodes(empty_map(2, 1), 3, 1), 0);
  map = **add_node(map, {"n0", "host0:1", {"n0-0", "n0-9"}});  // a spare beside a member
  map = **add_node(map, offer(7, 1));
  const StorageMap next = *replace_target(map, "n1-0", std::nullopt);
  const auto place = *next.place_of("n7-0");
  EXPECT_EQ(place.shard_index, map.place_of("n1-0")->shard_index);
  EXPECT_EQ(next.groups[0].members[place.shard_index].state, MemberState::kRebuilding);
  ASSERT_EQ(spares_of(next).size(), 2U);
  const StorageMap asked = *replace_target(map, "n1-0", "n0-9");
  EXPECT_TRUE(asked.place_of("n0-9").has_value());
}

TEST(MapPlan, AReplacementThatWouldLoseBlocksIsRefused) {
  StorageMap map = *form_groups(with_nodes(empty_map(2, 1), 3, 1), 0);
  EXPECT_EQ(replace_target(map, "n1-0", std::nullopt).status().code(),
            absl::StatusCode::kNotFound);  // no spare
  map = **add_node(map, offer(7, 1));
  EXPECT_EQ(replace_target(map, "n9-0", std::nullopt).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(replace_target(map, "n7-0", std::nullopt).status().code(),
            absl::StatusCode::kNotFound);  // the spare itself
  EXPECT_EQ(replace_target(map, "n0-0", "n1-0").status().code(),
            absl::StatusCode::kFailedPrecondition);
  map = *set_dead_nodes(map, {"n2"});
  EXPECT_TRUE(replace_target(map, "n2-0", std::nullopt).ok());
  EXPECT_EQ(replace_target(map, "n1-0", std::nullopt).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// Whatever happens in whatever order, the map stays valid, and its epoch only grows.
TEST(MapPlan, AnySequenceOfChangesKeepsTheRules) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    StorageMap map = empty_map(4, 2);
    for (int step = 0; step < 60; ++step) {
      const std::uint64_t epoch = map.epoch;
      std::optional<StorageMap> next;
      const int node = static_cast<int>(random() % 9);
      const std::string target = str_cat("n", node, "-", random() % 3);
      switch (random() % 5) {
        case 0:
          next = *add_node(map, offer(node, static_cast<int>(1 + random() % 3)));
          break;
        case 1:
          next = form_groups(map, random() % 3);
          break;
        case 2:
          next = set_dead_nodes(map, {str_cat("n", node), str_cat("n", random() % 9)});
          break;
        case 3:
          next = set_rebuilt(map, target);
          break;
        default:
          if (absl::StatusOr<StorageMap> replaced = replace_target(map, target, std::nullopt);
              replaced.ok()) {
            next = *std::move(replaced);
          }
      }
      if (!next) continue;
      ASSERT_TRUE(validate(*next).ok()) << "seed " << seed << ": " << validate(*next);
      ASSERT_EQ(next->epoch, epoch + 1) << "seed " << seed;
      map = *std::move(next);
    }
  }
}

}  // namespace
}  // namespace millrace::storage
