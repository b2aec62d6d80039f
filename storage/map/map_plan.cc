#include "storage/map/map_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::storage {
namespace {

StorageMap next_of(const StorageMap& map) {
  StorageMap next = map;
  ++next.epoch;
  return next;
}

std::string_view node_of(const StorageMap& map, std::string_view target_id) {
  const TargetEntry* target = map.find_target(target_id);
  return target == nullptr ? std::string_view() : std::string_view(target->node_id);
}

/// Takes `count` spares, one node after the other, beginning with the nodes that have most: what is
/// left stays as even as it can, so that later groups spread as well.
std::vector<std::string> pick_spread(const std::vector<const TargetEntry*>& spares,
                                     std::size_t count) {
  std::map<std::string_view, std::vector<std::string_view>> by_node;
  for (const TargetEntry* spare : spares) by_node[spare->node_id].push_back(spare->id);
  std::vector<std::string> picked;
  while (picked.size() < count) {
    std::vector<std::pair<std::size_t, std::string_view>> order;  // fewest last; then by name
    for (const auto& [node, ids] : by_node) {
      if (!ids.empty()) order.emplace_back(ids.size(), node);
    }
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    for (const auto& [left, node] : order) {
      if (picked.size() == count) break;
      std::vector<std::string_view>& ids = by_node[node];
      picked.emplace_back(ids.front());
      ids.erase(ids.begin());
    }
  }
  return picked;
}

Member* find_member(StorageMap& map, std::string_view target_id, Group** group) {
  for (Group& candidate : map.groups) {
    for (Member& member : candidate.members) {
      if (member.target_id != target_id) continue;
      *group = &candidate;
      return &member;
    }
  }
  return nullptr;
}

/// The spare whose node holds the fewest members of the group besides the leaving one.
const TargetEntry* best_spare(const StorageMap& map, const Group& group, std::string_view leaving) {
  const TargetEntry* best = nullptr;
  long best_shared = 0;
  for (const TargetEntry* spare : spares_of(map)) {
    const long shared =
        std::count_if(group.members.begin(), group.members.end(), [&](const Member& member) {
          return member.target_id != leaving && node_of(map, member.target_id) == spare->node_id;
        });
    if (best != nullptr && shared >= best_shared) continue;
    best = spare;
    best_shared = shared;
  }
  return best;
}

absl::StatusOr<const TargetEntry*> choose_spare(const StorageMap& map, const Group& group,
                                                std::string_view leaving,
                                                std::optional<std::string_view> spare_id) {
  if (!spare_id) {
    const TargetEntry* best = best_spare(map, group, leaving);
    if (best == nullptr) return absl::NotFoundError("there is no spare target");
    return best;
  }
  const TargetEntry* spare = map.find_target(*spare_id);
  if (spare == nullptr) return absl::NotFoundError(str_cat("target ", *spare_id, " is not known"));
  if (map.place_of(*spare_id)) {
    return absl::FailedPreconditionError(
        str_cat("target ", *spare_id, " is a member of a group, not a spare"));
  }
  return spare;
}

}  // namespace

std::vector<const TargetEntry*> spares_of(const StorageMap& map) {
  std::set<std::string_view> used;
  for (const Group& group : map.groups) {
    for (const Member& member : group.members) used.insert(member.target_id);
  }
  std::vector<const TargetEntry*> spares;
  for (const TargetEntry& target : map.targets) {
    if (!used.contains(target.id)) spares.push_back(&target);
  }
  return spares;
}

absl::StatusOr<std::optional<StorageMap>> add_node(const StorageMap& map,
                                                   const StorageNodeOffer& offer) {
  StorageMap next = next_of(map);
  bool is_changed = false;
  const auto node =
      std::find_if(next.nodes.begin(), next.nodes.end(),
                   [&](const StorageNodeEntry& entry) { return entry.id == offer.node_id; });
  if (node == next.nodes.end()) {
    next.nodes.push_back({offer.node_id, offer.address});
    is_changed = true;
  } else if (node->address != offer.address) {
    node->address = offer.address;
    is_changed = true;
  }
  for (const std::string& target_id : offer.target_ids) {
    const TargetEntry* known = next.find_target(target_id);
    if (known != nullptr && known->node_id != offer.node_id) {
      return absl::AlreadyExistsError(str_cat("target ", target_id, " of node ", offer.node_id,
                                              " is known as one of node ", known->node_id));
    }
    if (known != nullptr) continue;
    next.targets.push_back({target_id, offer.node_id});
    is_changed = true;
  }
  if (!is_changed) return std::optional<StorageMap>();
  return std::optional<StorageMap>(std::move(next));
}

std::optional<StorageMap> form_groups(const StorageMap& map, std::size_t keep_spares) {
  StorageMap next = next_of(map);
  const auto size = static_cast<std::size_t>(map.group_shards());
  std::vector<const TargetEntry*> spares = spares_of(next);
  bool is_changed = false;
  while (spares.size() >= size + keep_spares) {
    Group group;
    for (const Group& existing : next.groups) group.id = std::max(group.id, existing.id + 1);
    for (std::string& target : pick_spread(spares, size)) {
      group.members.push_back({std::move(target), MemberState::kUp});
    }
    next.groups.push_back(std::move(group));
    spares = spares_of(next);
    is_changed = true;
  }
  if (!is_changed) return std::nullopt;
  return next;
}

std::optional<StorageMap> set_dead_nodes(const StorageMap& map,
                                         const std::set<std::string, std::less<>>& dead) {
  StorageMap next = next_of(map);
  bool is_changed = false;
  for (Group& group : next.groups) {
    for (Member& member : group.members) {
      const bool is_dead = dead.contains(node_of(map, member.target_id));
      if (is_dead == (member.state == MemberState::kDown)) continue;
      member.state = is_dead ? MemberState::kDown : MemberState::kRebuilding;
      is_changed = true;
    }
  }
  if (!is_changed) return std::nullopt;
  return next;
}

std::optional<StorageMap> set_rebuilt(const StorageMap& map, std::string_view target_id) {
  StorageMap next = next_of(map);
  Group* group = nullptr;
  Member* member = find_member(next, target_id, &group);
  if (member == nullptr || member->state != MemberState::kRebuilding) return std::nullopt;
  member->state = MemberState::kUp;
  return next;
}

absl::StatusOr<StorageMap> replace_target(const StorageMap& map, std::string_view target_id,
                                          std::optional<std::string_view> spare_id) {
  if (map.find_target(target_id) == nullptr) {
    return absl::NotFoundError(str_cat("target ", target_id, " is not known"));
  }
  StorageMap next = next_of(map);
  Group* group = nullptr;
  Member* member = find_member(next, target_id, &group);
  if (member == nullptr) {
    return absl::NotFoundError(str_cat("target ", target_id, " is in no group: it is a spare"));
  }
  ASSIGN_OR_RETURN(const TargetEntry* spare, choose_spare(map, *group, target_id, spare_id));
  const long up = std::count_if(
      group->members.begin(), group->members.end(),
      [&](const Member& other) { return &other != member && other.state == MemberState::kUp; });
  if (up < map.data_shards) {
    return absl::FailedPreconditionError(
        str_cat("without ", target_id, " group ", group->id, " has ", up, " members that are up, ",
                map.data_shards, " are needed to rebuild; wait until another one is back"));
  }
  member->target_id = spare->id;
  member->state = MemberState::kRebuilding;
  return next;
}

}  // namespace millrace::storage
