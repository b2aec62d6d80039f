#include <utility>

#include "api/admin/object_reader.h"
#include "common/annotate.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/map/storage_map.h"
#include "storage/wire/shard_format.h"

namespace millrace::storage {
namespace {

using api::admin::ObjectReader;

constexpr std::int64_t kMapVersion = 1;
constexpr std::size_t kMostEntries = std::size_t{1} << 18;  // bounds a damaged or foreign text

std::string_view member_state_name(MemberState state) {
  switch (state) {
    case MemberState::kUp:
      return "up";
    case MemberState::kRebuilding:
      return "rebuilding";
    case MemberState::kDown:
      return "down";
  }
  return "";
}

absl::StatusOr<MemberState> parse_member_state(std::string_view name) {
  for (MemberState state : {MemberState::kUp, MemberState::kRebuilding, MemberState::kDown}) {
    if (member_state_name(state) == name) return state;
  }
  return absl::InvalidArgumentError(
      str_cat("must be \"up\", \"rebuilding\" or \"down\", not \"", name, "\""));
}

absl::StatusOr<StorageNodeEntry> read_node(const Json& json, std::string path) {
  StorageNodeEntry node;
  ObjectReader reader(json, std::move(path));
  reader.required("id", node.id);
  reader.required("address", node.address);
  RETURN_IF_ERROR(reader.finish());
  return node;
}

absl::StatusOr<TargetEntry> read_target(const Json& json, std::string path) {
  TargetEntry target;
  ObjectReader reader(json, std::move(path));
  reader.required("id", target.id);
  reader.required("node", target.node_id);
  RETURN_IF_ERROR(reader.finish());
  return target;
}

absl::StatusOr<Member> read_member(const Json& json, std::string path) {
  Member member;
  ObjectReader reader(json, std::move(path));
  reader.required("target", member.target_id);
  reader.required_name("state", &parse_member_state, member.state);
  RETURN_IF_ERROR(reader.finish());
  return member;
}

absl::StatusOr<Group> read_group(const Json& json, std::string path) {
  Group group;
  std::int64_t id = 0;
  ObjectReader reader(json, std::move(path));
  reader.required_between("id", 0, (std::int64_t{1} << 32) - 1, id);
  reader.required_list("members", kMaxGroupShards, &read_member, group.members);
  RETURN_IF_ERROR(reader.finish());
  group.id = static_cast<std::uint32_t>(id);
  return group;
}

Json group_json(const Group& group) {
  Json members = Json::array();
  for (const Member& member : group.members) {
    Json json;
    json["target"] = member.target_id;
    json["state"] = std::string(member_state_name(member.state));
    members.push_back(std::move(json));
  }
  Json json;
  json["id"] = group.id;
  json["members"] = std::move(members);
  return json;
}

}  // namespace

std::string encode_map(const StorageMap& map) {
  Json nodes = Json::array();
  for (const StorageNodeEntry& node : map.nodes) {
    Json json;
    json["id"] = node.id;
    json["address"] = node.address;
    nodes.push_back(std::move(json));
  }
  Json targets = Json::array();
  for (const TargetEntry& target : map.targets) {
    Json json;
    json["id"] = target.id;
    json["node"] = target.node_id;
    targets.push_back(std::move(json));
  }
  Json groups = Json::array();
  for (const Group& group : map.groups) groups.push_back(group_json(group));
  Json json;
  json["version"] = kMapVersion;
  json["cluster_id"] = map.cluster_id;
  json["epoch"] = map.epoch;
  json["data_shards"] = map.data_shards;
  json["parity_shards"] = map.parity_shards;
  json["block_bytes"] = map.block_bytes;
  json["nodes"] = std::move(nodes);
  json["targets"] = std::move(targets);
  json["groups"] = std::move(groups);
  return dump_json(json);
}

absl::StatusOr<StorageMap> decode_map(std::string_view text) {
  if (text.size() > kMaxMapBytes) {
    return absl::InvalidArgumentError(
        str_cat("a storage map of ", text.size(), " bytes, more than ", kMaxMapBytes));
  }
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  StorageMap map;
  std::int64_t version = 0;
  std::int64_t data_shards = 0;
  std::int64_t parity_shards = 0;
  std::int64_t block_bytes = 0;
  ObjectReader reader(json, "");
  reader.required_between("version", kMapVersion, kMapVersion, version);
  reader.required("cluster_id", map.cluster_id);
  reader.required("epoch", map.epoch);
  reader.required_between("data_shards", 1, kMaxGroupShards, data_shards);
  reader.required_between("parity_shards", 0, kMaxGroupShards, parity_shards);
  reader.required_between("block_bytes", 1, static_cast<std::int64_t>(kMaxBlockBytes), block_bytes);
  reader.required_list("nodes", kMostEntries, &read_node, map.nodes);
  reader.required_list("targets", kMostEntries, &read_target, map.targets);
  reader.required_list("groups", kMostEntries, &read_group, map.groups);
  RETURN_IF_ERROR(reader.finish());
  map.data_shards = static_cast<int>(data_shards);
  map.parity_shards = static_cast<int>(parity_shards);
  map.block_bytes = static_cast<std::uint32_t>(block_bytes);
  RETURN_IF_ERROR(validate(map));
  return map;
}

absl::StatusOr<StorageMap> load_map(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxMapBytes));
  absl::StatusOr<StorageMap> map = decode_map(text);
  if (!map.ok()) return annotate(map.status(), path);
  return map;
}

absl::Status save_map(const std::string& path, const StorageMap& map) {
  return write_file_durably(path, encode_map(map));
}

}  // namespace millrace::storage
