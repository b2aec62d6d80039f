#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/map/storage_map.h"

namespace millrace::storage {

/// How the map changes. Pure: each takes a map and returns the next one (epoch one higher) or says
/// why there is none. Equal inputs give equal maps.

/// A node with its targets, as it introduces itself.
struct StorageNodeOffer {
  std::string node_id;
  std::string address;
  std::vector<std::string> target_ids;
};

/// Adds a node, or changes its address and adds targets it did not have. Its new targets are
/// spares. nullopt: nothing would change. kAlreadyExists: a target is known under another node.
absl::StatusOr<std::optional<StorageMap>> add_node(const StorageMap& map,
                                                   const StorageNodeOffer& offer);

/// Makes a group of each k + m spares beyond `keep_spares`, as long as there are any. A group takes
/// its members from as many different nodes as it can, so that it loses as few as possible with
/// one. nullopt: there are too few.
std::optional<StorageMap> form_groups(const StorageMap& map, std::size_t keep_spares);

/// The members on these nodes are down; members that are down on other nodes begin to rebuild.
/// nullopt: nothing would change.
std::optional<StorageMap> set_dead_nodes(const StorageMap& map,
                                         const std::set<std::string, std::less<>>& dead);

/// The target has what it should have. nullopt: it was not rebuilding.
std::optional<StorageMap> set_rebuilt(const StorageMap& map, std::string_view target_id);

/// A spare takes the place of a target, which becomes a spare itself, and is rebuilt. Without
/// `spare_id` the one that shares a node with the fewest members of the group. kNotFound: no such
/// target, not a member, or no spare; kFailedPrecondition: the group would be left with fewer than
/// k members that are up, so that blocks would be lost: say so, and what would have to come back
/// first.
absl::StatusOr<StorageMap> replace_target(const StorageMap& map, std::string_view target_id,
                                          std::optional<std::string_view> spare_id);

/// Targets that are in no group, in the order of the map.
std::vector<const TargetEntry*> spares_of(const StorageMap& map);

}  // namespace millrace::storage
