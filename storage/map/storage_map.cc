#include "storage/map/storage_map.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/check.h"
#include "common/str_cat.h"
#include "storage/wire/shard_format.h"

namespace millrace::storage {
namespace {

/// Finaliser of MurmurHash3 (public domain): every input bit changes half of the output bits.
std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ULL;
  value ^= value >> 33;
  return value;
}

/// A group's part in its scores; the key's part is mixed into it.
std::uint64_t group_hash(std::uint32_t group_id) { return mix(std::uint64_t{group_id} + 1); }

/// Whether the second of two groups gets a block rather than the first. Equal scores go to the
/// lower id, so that the order of the list does not matter.
bool is_preferred(std::uint64_t best, std::uint32_t best_id, std::uint64_t candidate,
                  std::uint32_t candidate_id) {
  return candidate > best || (candidate == best && candidate_id < best_id);
}

absl::Status broken(std::string_view what) {
  return absl::InvalidArgumentError(str_cat("storage map: ", what));
}

absl::Status check_shape(const StorageMap& map) {
  if (map.cluster_id.empty()) return broken("cluster_id is empty");
  if (map.data_shards < 1 || map.parity_shards < 0 || map.group_shards() > kMaxGroupShards) {
    return broken(str_cat("data_shards ", map.data_shards, " and parity_shards ", map.parity_shards,
                          " must be at least 1 and 0, together at most ", kMaxGroupShards));
  }
  if (map.block_bytes == 0 || map.block_bytes > kMaxBlockBytes) {
    return broken(
        str_cat("block_bytes ", map.block_bytes, " must be between 1 and ", kMaxBlockBytes));
  }
  return absl::OkStatus();
}

absl::Status check_entries(const StorageMap& map, std::set<std::string_view>& targets) {
  std::set<std::string_view> nodes;
  for (const StorageNodeEntry& node : map.nodes) {
    if (node.id.empty() || node.address.empty()) return broken("a node without id or address");
    if (!nodes.insert(node.id).second) return broken(str_cat("node ", node.id, " occurs twice"));
  }
  for (const TargetEntry& target : map.targets) {
    if (target.id.empty()) return broken("a target without id");
    if (!targets.insert(target.id).second) {
      return broken(str_cat("target ", target.id, " occurs twice"));
    }
    if (!nodes.contains(target.node_id)) {
      return broken(str_cat("target ", target.id, " is on the unknown node ", target.node_id));
    }
  }
  return absl::OkStatus();
}

absl::Status check_groups(const StorageMap& map, const std::set<std::string_view>& targets) {
  std::set<std::uint32_t> ids;
  std::set<std::string_view> used;
  for (const Group& group : map.groups) {
    if (!ids.insert(group.id).second) return broken(str_cat("group ", group.id, " occurs twice"));
    if (static_cast<int>(group.members.size()) != map.group_shards()) {
      return broken(str_cat("group ", group.id, " has ", group.members.size(), " members, not ",
                            map.group_shards()));
    }
    for (const Member& member : group.members) {
      if (!targets.contains(member.target_id)) {
        return broken(str_cat("group ", group.id, " names the unknown target ", member.target_id));
      }
      if (!used.insert(member.target_id).second) {
        return broken(str_cat("target ", member.target_id, " is a member twice"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

const StorageNodeEntry* StorageMap::find_node(std::string_view node_id) const {
  const auto it = std::find_if(nodes.begin(), nodes.end(),
                               [&](const StorageNodeEntry& node) { return node.id == node_id; });
  return it == nodes.end() ? nullptr : &*it;
}

const TargetEntry* StorageMap::find_target(std::string_view target_id) const {
  const auto it = std::find_if(targets.begin(), targets.end(),
                               [&](const TargetEntry& target) { return target.id == target_id; });
  return it == targets.end() ? nullptr : &*it;
}

std::string_view StorageMap::address_of(std::string_view target_id) const {
  const TargetEntry* target = find_target(target_id);
  const StorageNodeEntry* node = target == nullptr ? nullptr : find_node(target->node_id);
  return node == nullptr ? std::string_view() : std::string_view(node->address);
}

std::optional<StorageMap::Place> StorageMap::place_of(std::string_view target_id) const {
  for (const Group& group : groups) {
    for (std::size_t index = 0; index < group.members.size(); ++index) {
      if (group.members[index].target_id == target_id) {
        return Place{group.id, static_cast<std::uint8_t>(index)};
      }
    }
  }
  return std::nullopt;
}

absl::Status validate(const StorageMap& map) {
  if (absl::Status status = check_shape(map); !status.ok()) return status;
  std::set<std::string_view> targets;
  if (absl::Status status = check_entries(map, targets); !status.ok()) return status;
  return check_groups(map, targets);
}

const Group& group_of(const StorageMap& map, const BlockKey& key) {
  CHECK(!map.groups.empty());
  const std::uint64_t prefix = key.prefix();
  const auto score = [&](const Group& group) { return mix(prefix ^ group_hash(group.id)); };
  std::size_t best = 0;
  std::uint64_t best_score = score(map.groups[0]);
  for (std::size_t index = 1; index < map.groups.size(); ++index) {
    const std::uint64_t candidate = score(map.groups[index]);
    if (!is_preferred(best_score, map.groups[best].id, candidate, map.groups[index].id)) continue;
    best = index;
    best_score = candidate;
  }
  return map.groups[best];
}

Placement::Placement(const StorageMap& map) {
  candidates_.reserve(map.groups.size());
  for (const Group& group : map.groups) candidates_.push_back({group.id, group_hash(group.id)});
}

std::optional<std::uint32_t> Placement::group_id_of(const BlockKey& key) const {
  std::optional<std::uint32_t> best;
  std::uint64_t best_score = 0;
  const std::uint64_t prefix = key.prefix();
  for (const Candidate& candidate : candidates_) {
    const std::uint64_t score = mix(prefix ^ candidate.hash);
    if (best && !is_preferred(best_score, *best, score, candidate.group_id)) continue;
    best = candidate.group_id;
    best_score = score;
  }
  return best;
}

std::optional<std::uint8_t> owner_of(const Group& group) {
  for (std::size_t index = 0; index < group.members.size(); ++index) {
    if (group.members[index].state == MemberState::kUp) return static_cast<std::uint8_t>(index);
  }
  return std::nullopt;
}

}  // namespace millrace::storage
