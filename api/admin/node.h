#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "api/admin/process.h"

namespace millrace::api::admin {

/// POST /api/v1/nodes: an agent introduces its node.
struct NodeJoin {
  std::uint32_t protocol_version = 0;
  std::string node_id;
  std::string host_id;
  std::string session_id;   ///< new for every start of an agent
  std::string address;      ///< host:port of the agent's REST listener
  std::uint64_t epoch = 0;  ///< the highest it ever obeyed; 0 = none
};

struct NodeJoinReply {
  std::uint64_t epoch = 0;
  std::chrono::milliseconds heartbeat_interval{0};
  std::chrono::milliseconds node_timeout{0};  ///< without a heartbeat for so long it counts as dead
};

/// POST /api/v1/nodes/{id}/heartbeat.
struct Heartbeat {
  std::string session_id;
  std::uint64_t epoch = 0;     ///< the highest it ever obeyed
  std::uint64_t revision = 0;  ///< of the assignment it follows now, in that epoch; 0 = none
  bool is_leaving = false;     ///< the last one: the agent has stopped its processes
  std::vector<ProcessReport> processes;
};

/// An agent refuses a reply of an older epoch, or of an older revision in the same epoch.
struct HeartbeatReply {
  std::uint64_t epoch = 0;     ///< grows with every start of a controller
  std::uint64_t revision = 0;  ///< grows with every change of any assignment
  /// What the node should run, complete; absent = the controller does not know yet: run on.
  std::optional<std::vector<AssignedProcess>> assignment;
};

/// One line of GET /api/v1/nodes.
struct NodeInfo {
  std::string node_id;
  std::string host_id;
  std::string address;
  bool is_alive = false;
  std::chrono::milliseconds heartbeat_age{0};
  std::vector<ProcessReport> processes;  ///< as last reported
};

std::string to_json(const NodeJoin& join);
std::string to_json(const NodeJoinReply& reply);
std::string to_json(const Heartbeat& heartbeat);
std::string to_json(const HeartbeatReply& reply);
std::string to_json(const std::vector<NodeInfo>& nodes);  ///< {"nodes": [...]}

absl::StatusOr<NodeJoin> parse_node_join(std::string_view json);
absl::StatusOr<NodeJoinReply> parse_node_join_reply(std::string_view json);
absl::StatusOr<Heartbeat> parse_heartbeat(std::string_view json);
absl::StatusOr<HeartbeatReply> parse_heartbeat_reply(std::string_view json);
absl::StatusOr<std::vector<NodeInfo>> parse_nodes(std::string_view json);

/// GET /api/v1/state of an agent.
struct AgentState {
  std::string node_id;
  std::string host_id;
  std::uint64_t epoch = 0;
  bool is_connected = false;  ///< the last heartbeat was answered
  std::vector<ProcessReport> processes;
};

std::string to_json(const AgentState& state);
absl::StatusOr<AgentState> parse_agent_state(std::string_view json);

}  // namespace millrace::api::admin
