#include "controller/membership/membership.h"

#include <algorithm>
#include <utility>

#include "common/str_cat.h"

namespace millrace::controller::membership {
namespace {

using api::admin::ProcessReport;

/// By worker id; kInvalidArgument names an id that is listed twice.
absl::StatusOr<std::vector<ProcessReport>> in_order(std::vector<ProcessReport> reports) {
  std::sort(reports.begin(), reports.end(), [](const ProcessReport& a, const ProcessReport& b) {
    return a.worker_id < b.worker_id;
  });
  for (std::size_t index = 1; index < reports.size(); ++index) {
    if (reports[index - 1].worker_id == reports[index].worker_id) {
      return absl::InvalidArgumentError(
          str_cat("\"processes\" lists \"", reports[index].worker_id, "\" twice"));
    }
  }
  return reports;
}

}  // namespace

absl::Status Membership::join(const api::admin::NodeJoin& join, TimePoint now) {
  auto it = nodes_.find(join.node_id);
  if (it == nodes_.end()) {
    if (nodes_.size() >= kMaxNodes) {
      return absl::ResourceExhaustedError(str_cat("the cluster has ", kMaxNodes, " nodes already"));
    }
    it = nodes_.emplace(join.node_id, NodeRecord{}).first;
  } else if (it->second.is_alive && it->second.session_id != join.session_id) {
    return absl::AlreadyExistsError(
        str_cat("another agent runs as node \"", join.node_id, "\" (", it->second.address,
                "); stop it, choose another --node-id, or wait until it counts as dead"));
  }
  NodeRecord& node = it->second;
  if (node.session_id != join.session_id) node = NodeRecord{};
  node.node_id = join.node_id;
  node.host_id = join.host_id;
  node.address = join.address;
  node.session_id = join.session_id;
  node.last_heard = now;
  node.is_alive = true;
  node.has_left = false;
  return absl::OkStatus();
}

absl::StatusOr<bool> Membership::heartbeat(std::string_view node_id,
                                           const api::admin::Heartbeat& heartbeat, TimePoint now) {
  auto it = nodes_.find(node_id);
  if (it == nodes_.end() || it->second.session_id != heartbeat.session_id) {
    return absl::NotFoundError(str_cat("node \"", node_id, "\" has not joined in this session"));
  }
  absl::StatusOr<std::vector<ProcessReport>> processes = in_order(heartbeat.processes);
  if (!processes.ok()) return processes.status();
  NodeRecord& node = it->second;
  const bool is_alive = !heartbeat.is_leaving;
  const bool is_changed =
      !node.has_reported || node.is_alive != is_alive || node.applied_epoch != heartbeat.epoch ||
      node.applied_revision != heartbeat.revision || node.processes != *processes;
  node.last_heard = now;
  node.is_alive = is_alive;
  node.has_left = heartbeat.is_leaving;
  node.has_reported = true;
  node.applied_epoch = heartbeat.epoch;
  node.applied_revision = heartbeat.revision;
  node.processes = std::move(*processes);
  return is_changed;
}

std::vector<std::string> Membership::expire(TimePoint now) {
  std::vector<std::string> dead;
  for (auto& [node_id, node] : nodes_) {
    if (!node.is_alive || now - node.last_heard < timeout_) continue;
    node.is_alive = false;
    dead.push_back(node_id);
  }
  return dead;
}

std::optional<TimePoint> Membership::next_expiry() const {
  std::optional<TimePoint> next;
  for (const auto& [node_id, node] : nodes_) {
    if (!node.is_alive) continue;
    const TimePoint due = node.last_heard + timeout_;
    if (!next || due < *next) next = due;
  }
  return next;
}

}  // namespace millrace::controller::membership
