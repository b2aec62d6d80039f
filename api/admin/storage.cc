#include "api/admin/storage.h"

#include <utility>

#include "api/admin/id.h"
#include "api/admin/object_reader.h"
#include "api/admin/process_json.h"
#include "api/admin/storage_json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::admin {
namespace {

/// Far above what one node has; the bound that a malformed message meets.
constexpr std::size_t kMaxTargetsPerNode = 1024;
constexpr std::size_t kMaxStorageNodes = std::size_t{1} << 16;
constexpr std::int64_t kMaxBlockBytes = std::int64_t{4} << 20;
constexpr std::int64_t kMaxShards = 32;

Json target_json(const StorageTargetReport& target) {
  Json json;
  json["target_id"] = target.target_id;
  json["failure"] = target.failure;
  json["slots"] = target.slots;
  json["used_slots"] = target.used_slots;
  json["published"] = target.published;
  json["leased"] = target.leased;
  json["rebuild_left"] = target.rebuild_left;
  json["rebuilt_epoch"] = target.rebuilt_epoch;
  json["scrub_request"] = target.scrub_request;
  json["scrub_checked"] = target.scrub_checked;
  json["scrub_total"] = target.scrub_total;
  json["scrub_bad"] = target.scrub_bad;
  return json;
}

void read_target_fields(ObjectReader& reader, StorageTargetReport& target) {
  reader.required("target_id", target.target_id);
  reader.required("failure", target.failure);
  reader.required("slots", target.slots);
  reader.required("used_slots", target.used_slots);
  reader.required("published", target.published);
  reader.required("leased", target.leased);
  reader.required("rebuild_left", target.rebuild_left);
  reader.required("rebuilt_epoch", target.rebuilt_epoch);
  reader.required("scrub_request", target.scrub_request);
  reader.required("scrub_checked", target.scrub_checked);
  reader.required("scrub_total", target.scrub_total);
  reader.required("scrub_bad", target.scrub_bad);
  if (!is_plain_id(target.target_id)) reader.fail("target_id", plain_id_error(target.target_id));
}

absl::StatusOr<StorageTargetReport> read_target(const Json& value, std::string path) {
  StorageTargetReport target;
  ObjectReader reader(value, std::move(path));
  read_target_fields(reader, target);
  RETURN_IF_ERROR(reader.finish());
  return target;
}

absl::StatusOr<StorageNodeInfo::Target> read_placed_target(const Json& value, std::string path) {
  StorageNodeInfo::Target target;
  ObjectReader reader(value, std::move(path));
  read_target_fields(reader, target.report);
  reader.required("group_id", target.group_id);
  reader.required("shard_index", target.shard_index);
  reader.required("member_state", target.member_state);
  RETURN_IF_ERROR(reader.finish());
  return target;
}

absl::StatusOr<StorageNodeInfo> read_node_info(const Json& value, std::string path) {
  StorageNodeInfo node;
  std::int64_t age_ms = 0;
  ObjectReader reader(value, std::move(path));
  reader.required("node_id", node.node_id);
  reader.required("address", node.address);
  reader.required("is_alive", node.is_alive);
  reader.required("report_age_ms", age_ms);
  reader.required("map_epoch", node.map_epoch);
  reader.required("evict_request", node.evict_request);
  reader.required_list("targets", kMaxTargetsPerNode, &read_placed_target, node.targets);
  RETURN_IF_ERROR(reader.finish());
  node.report_age = std::chrono::milliseconds(age_ms);
  return node;
}

Json node_info_json(const StorageNodeInfo& node) {
  Json targets = Json::array();
  for (const StorageNodeInfo::Target& target : node.targets) {
    Json json = target_json(target.report);
    json["group_id"] = target.group_id;
    json["shard_index"] = target.shard_index;
    json["member_state"] = target.member_state;
    targets.push_back(std::move(json));
  }
  Json json;
  json["node_id"] = node.node_id;
  json["address"] = node.address;
  json["is_alive"] = node.is_alive;
  json["report_age_ms"] = node.report_age.count();
  json["map_epoch"] = node.map_epoch;
  json["evict_request"] = node.evict_request;
  json["targets"] = std::move(targets);
  return json;
}

/// A fraction in [0, 1].
void read_fraction(ObjectReader& reader, std::string_view key, double& out) {
  reader.required(key, out);
  if (out < 0 || out > 1) {
    reader.fail(key, absl::InvalidArgumentError("must be a number between 0 and 1"));
  }
}

}  // namespace

Json desired_storage_json(const DesiredStorage& storage) {
  Json json;
  json["nodes"] = storage.nodes;
  json["targets_per_node"] = storage.targets_per_node;
  json["target_bytes"] = storage.target_bytes;
  json["block_bytes"] = storage.block_bytes;
  json["data_shards"] = storage.data_shards;
  json["parity_shards"] = storage.parity_shards;
  json["spares"] = storage.spares;
  json["fetch_bytes"] = storage.fetch_bytes;
  json["window_bytes"] = storage.window_bytes;
  json["window_pool_bytes"] = storage.window_pool_bytes;
  return json;
}

absl::StatusOr<DesiredStorage> read_desired_storage(const Json& value, std::string path) {
  DesiredStorage storage;
  std::int64_t nodes = 0;
  std::int64_t targets = 0;
  std::int64_t data_shards = storage.data_shards;
  std::int64_t parity_shards = storage.parity_shards;
  std::int64_t spares = 0;
  ObjectReader reader(value, std::move(path));
  reader.required_between("nodes", 0, static_cast<std::int64_t>(kMaxStorageNodes), nodes);
  reader.required_between("targets_per_node", 0, static_cast<std::int64_t>(kMaxTargetsPerNode),
                          targets);
  reader.required_between("target_bytes", 0, kMaxStorageBytes, storage.target_bytes);
  reader.required_between("block_bytes", 0, kMaxBlockBytes, storage.block_bytes);
  reader.optional_between("data_shards", 1, kMaxShards - 1, data_shards);
  reader.optional_between("parity_shards", 0, kMaxShards - 1, parity_shards);
  reader.optional_between("spares", 0, static_cast<std::int64_t>(kMaxStorageNodes), spares);
  reader.optional_between("fetch_bytes", 0, kMaxStorageBytes, storage.fetch_bytes);
  reader.optional_between("window_bytes", 0, kMaxStorageBytes, storage.window_bytes);
  reader.optional_between("window_pool_bytes", 0, kMaxStorageBytes, storage.window_pool_bytes);
  if (data_shards + parity_shards > kMaxShards) {
    reader.fail("parity_shards",
                absl::InvalidArgumentError(str_cat("with data_shards more than ", kMaxShards)));
  }
  if (nodes > 0 && (targets == 0 || storage.target_bytes == 0 || storage.block_bytes == 0)) {
    reader.fail("nodes", absl::InvalidArgumentError(
                             "needs targets_per_node, target_bytes and block_bytes above 0"));
  }
  RETURN_IF_ERROR(reader.finish());
  storage.nodes = static_cast<int>(nodes);
  storage.targets_per_node = static_cast<int>(targets);
  storage.data_shards = static_cast<int>(data_shards);
  storage.parity_shards = static_cast<int>(parity_shards);
  storage.spares = static_cast<int>(spares);
  return storage;
}

std::string to_json(const StorageReport& report) {
  Json targets = Json::array();
  for (const StorageTargetReport& target : report.targets) targets.push_back(target_json(target));
  Json json;
  json["protocol_version"] = report.protocol_version;
  json["cluster_id"] = report.cluster_id;
  json["address"] = report.address;
  json["map_epoch"] = report.map_epoch;
  json["evict_request"] = report.evict_request;
  json["targets"] = std::move(targets);
  return dump_json(json);
}

absl::StatusOr<StorageReport> parse_storage_report(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  StorageReport report;
  std::int64_t version = 0;
  ObjectReader reader(json, "");
  reader.required_between("protocol_version", 0, (std::int64_t{1} << 32) - 1, version);
  reader.required("cluster_id", report.cluster_id);
  reader.required("address", report.address);
  reader.required("map_epoch", report.map_epoch);
  reader.required("evict_request", report.evict_request);
  reader.required_list("targets", kMaxTargetsPerNode, &read_target, report.targets);
  if (report.address.empty()) {
    reader.fail("address", absl::InvalidArgumentError("must not be empty"));
  }
  RETURN_IF_ERROR(reader.finish());
  report.protocol_version = static_cast<std::uint32_t>(version);
  return report;
}

std::string to_json(const StorageReportReply& reply) {
  Json json;
  json["map_epoch"] = reply.map_epoch;
  json["report_interval_ms"] = reply.report_interval.count();
  json["scrub_request"] = reply.scrub_request;
  json["evict_request"] = reply.evict_request;
  json["evict_to_fraction"] = reply.evict_to_fraction;
  return dump_json(json);
}

absl::StatusOr<StorageReportReply> parse_storage_report_reply(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  StorageReportReply reply;
  std::int64_t interval_ms = 0;
  ObjectReader reader(json, "");
  reader.required("map_epoch", reply.map_epoch);
  reader.required_between("report_interval_ms", 1, 3'600'000, interval_ms);
  reader.required("scrub_request", reply.scrub_request);
  reader.required("evict_request", reply.evict_request);
  read_fraction(reader, "evict_to_fraction", reply.evict_to_fraction);
  RETURN_IF_ERROR(reader.finish());
  reply.report_interval = std::chrono::milliseconds(interval_ms);
  return reply;
}

std::string to_json(const StorageStatus& status) {
  Json nodes = Json::array();
  for (const StorageNodeInfo& node : status.nodes) nodes.push_back(node_info_json(node));
  Json json;
  json["cluster_id"] = status.cluster_id;
  json["map_epoch"] = status.map_epoch;
  json["data_shards"] = status.data_shards;
  json["parity_shards"] = status.parity_shards;
  json["block_bytes"] = status.block_bytes;
  json["groups"] = status.groups;
  json["scrub_request"] = status.scrub_request;
  json["evict_request"] = status.evict_request;
  json["nodes"] = std::move(nodes);
  return dump_json(json);
}

absl::StatusOr<StorageStatus> parse_storage_status(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  StorageStatus status;
  std::int64_t data_shards = 0;
  std::int64_t parity_shards = 0;
  ObjectReader reader(json, "");
  reader.required("cluster_id", status.cluster_id);
  reader.required("map_epoch", status.map_epoch);
  reader.required_between("data_shards", 0, kMaxShards, data_shards);
  reader.required_between("parity_shards", 0, kMaxShards, parity_shards);
  reader.required("block_bytes", status.block_bytes);
  reader.required("groups", status.groups);
  reader.required("scrub_request", status.scrub_request);
  reader.required("evict_request", status.evict_request);
  reader.required_list("nodes", kMaxStorageNodes, &read_node_info, status.nodes);
  RETURN_IF_ERROR(reader.finish());
  status.data_shards = static_cast<int>(data_shards);
  status.parity_shards = static_cast<int>(parity_shards);
  return status;
}

std::string to_json(const StorageReplace& replace) {
  Json json;
  json["target"] = replace.target_id;
  if (!replace.spare_id.empty()) json["spare"] = replace.spare_id;
  return dump_json(json);
}

absl::StatusOr<StorageReplace> parse_storage_replace(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  StorageReplace replace;
  ObjectReader reader(json, "");
  reader.required("target", replace.target_id);
  reader.optional("spare", replace.spare_id);
  RETURN_IF_ERROR(reader.finish());
  return replace;
}

std::string to_json(const StorageWish& wish) {
  Json json;
  json["request"] = wish.request;
  return dump_json(json);
}

absl::StatusOr<StorageWish> parse_storage_wish(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  StorageWish wish;
  ObjectReader reader(json, "");
  reader.required("request", wish.request);
  RETURN_IF_ERROR(reader.finish());
  return wish;
}

std::string to_json(const StorageEvict& evict) {
  Json json;
  json["to_fraction"] = evict.to_fraction;
  return dump_json(json);
}

absl::StatusOr<StorageEvict> parse_storage_evict(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  StorageEvict evict;
  ObjectReader reader(json, "");
  read_fraction(reader, "to_fraction", evict.to_fraction);
  RETURN_IF_ERROR(reader.finish());
  return evict;
}

}  // namespace millrace::api::admin
