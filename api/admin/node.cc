#include "api/admin/node.h"

#include <utility>

#include "api/admin/id.h"
#include "api/admin/object_reader.h"
#include "api/admin/process_json.h"
#include "common/status_macros.h"

namespace millrace::api::admin {
namespace {

constexpr std::int64_t kMaxMilliseconds = std::int64_t{24} * 3600 * 1000;

void read_id(ObjectReader& reader, std::string_view key, std::string& out) {
  reader.required(key, out);
  if (!is_plain_id(out)) reader.fail(key, plain_id_error(out));
}

void read_milliseconds(ObjectReader& reader, std::string_view key, std::chrono::milliseconds& out) {
  std::int64_t count = 0;
  reader.required_between(key, 0, kMaxMilliseconds, count);
  out = std::chrono::milliseconds(count);
}

Json reports_json(const std::vector<ProcessReport>& reports) {
  Json list = Json::array();
  for (const ProcessReport& report : reports) list.push_back(report_json(report));
  return list;
}

absl::StatusOr<NodeInfo> read_node_info(const Json& value, std::string path) {
  NodeInfo node;
  ObjectReader reader(value, std::move(path));
  reader.required("node_id", node.node_id);
  reader.required("host_id", node.host_id);
  reader.required("address", node.address);
  reader.required("is_alive", node.is_alive);
  std::int64_t age_ms = 0;
  reader.required("heartbeat_age_ms", age_ms);
  node.heartbeat_age = std::chrono::milliseconds(age_ms);
  reader.required_list("processes", kMaxProcessesPerNode, &read_report, node.processes);
  RETURN_IF_ERROR(reader.finish());
  return node;
}

}  // namespace

std::string to_json(const NodeJoin& join) {
  Json json;
  json["protocol_version"] = join.protocol_version;
  json["node_id"] = join.node_id;
  json["host_id"] = join.host_id;
  json["session_id"] = join.session_id;
  json["address"] = join.address;
  json["epoch"] = join.epoch;
  return dump_json(json);
}

absl::StatusOr<NodeJoin> parse_node_join(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  NodeJoin join;
  ObjectReader reader(json, "");
  std::int64_t version = 0;
  reader.required_between("protocol_version", 0, std::numeric_limits<std::uint32_t>::max(),
                          version);
  join.protocol_version = static_cast<std::uint32_t>(version);
  read_id(reader, "node_id", join.node_id);
  read_id(reader, "host_id", join.host_id);
  read_id(reader, "session_id", join.session_id);
  reader.required("address", join.address);
  reader.required("epoch", join.epoch);
  RETURN_IF_ERROR(reader.finish());
  return join;
}

std::string to_json(const NodeJoinReply& reply) {
  Json json;
  json["epoch"] = reply.epoch;
  json["heartbeat_interval_ms"] = reply.heartbeat_interval.count();
  json["node_timeout_ms"] = reply.node_timeout.count();
  return dump_json(json);
}

absl::StatusOr<NodeJoinReply> parse_node_join_reply(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  NodeJoinReply reply;
  ObjectReader reader(json, "");
  reader.required("epoch", reply.epoch);
  read_milliseconds(reader, "heartbeat_interval_ms", reply.heartbeat_interval);
  read_milliseconds(reader, "node_timeout_ms", reply.node_timeout);
  RETURN_IF_ERROR(reader.finish());
  return reply;
}

std::string to_json(const Heartbeat& heartbeat) {
  Json json;
  json["session_id"] = heartbeat.session_id;
  json["epoch"] = heartbeat.epoch;
  json["revision"] = heartbeat.revision;
  json["is_leaving"] = heartbeat.is_leaving;
  json["processes"] = reports_json(heartbeat.processes);
  return dump_json(json);
}

absl::StatusOr<Heartbeat> parse_heartbeat(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  Heartbeat heartbeat;
  ObjectReader reader(json, "");
  read_id(reader, "session_id", heartbeat.session_id);
  reader.required("epoch", heartbeat.epoch);
  reader.required("revision", heartbeat.revision);
  reader.optional("is_leaving", heartbeat.is_leaving);
  reader.required_list("processes", kMaxProcessesPerNode, &read_report, heartbeat.processes);
  RETURN_IF_ERROR(reader.finish());
  return heartbeat;
}

std::string to_json(const HeartbeatReply& reply) {
  Json json;
  json["epoch"] = reply.epoch;
  json["revision"] = reply.revision;
  json["assignment"] = nullptr;
  if (reply.assignment) {
    Json list = Json::array();
    for (const AssignedProcess& assigned : *reply.assignment) {
      list.push_back(assigned_json(assigned));
    }
    json["assignment"] = std::move(list);
  }
  return dump_json(json);
}

absl::StatusOr<HeartbeatReply> parse_heartbeat_reply(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  HeartbeatReply reply;
  ObjectReader reader(json, "");
  reader.required("epoch", reply.epoch);
  reader.required("revision", reply.revision);
  if (reader.has("assignment")) {
    reader.required_list("assignment", kMaxProcessesPerNode, &read_assigned,
                         reply.assignment.emplace());
  }
  RETURN_IF_ERROR(reader.finish());
  return reply;
}

std::string to_json(const std::vector<NodeInfo>& nodes) {
  Json list = Json::array();
  for (const NodeInfo& node : nodes) {
    Json json;
    json["node_id"] = node.node_id;
    json["host_id"] = node.host_id;
    json["address"] = node.address;
    json["is_alive"] = node.is_alive;
    json["heartbeat_age_ms"] = node.heartbeat_age.count();
    json["processes"] = reports_json(node.processes);
    list.push_back(std::move(json));
  }
  Json json;
  json["nodes"] = std::move(list);
  return dump_json(json);
}

absl::StatusOr<std::vector<NodeInfo>> parse_nodes(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  std::vector<NodeInfo> nodes;
  ObjectReader reader(json, "");
  reader.required_list("nodes", std::size_t{1} << 20, &read_node_info, nodes);
  RETURN_IF_ERROR(reader.finish());
  return nodes;
}

std::string to_json(const AgentState& state) {
  Json json;
  json["node_id"] = state.node_id;
  json["host_id"] = state.host_id;
  json["epoch"] = state.epoch;
  json["is_connected"] = state.is_connected;
  json["processes"] = reports_json(state.processes);
  return dump_json(json);
}

absl::StatusOr<AgentState> parse_agent_state(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  AgentState state;
  ObjectReader reader(json, "");
  reader.required("node_id", state.node_id);
  reader.required("host_id", state.host_id);
  reader.required("epoch", state.epoch);
  reader.required("is_connected", state.is_connected);
  reader.required_list("processes", kMaxProcessesPerNode, &read_report, state.processes);
  RETURN_IF_ERROR(reader.finish());
  return state;
}

}  // namespace millrace::api::admin
