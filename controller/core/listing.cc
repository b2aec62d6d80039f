#include "controller/core/listing.h"

#include <algorithm>
#include <set>
#include <utility>

#include "controller/core/reconcile.h"

namespace millrace::controller::core {
namespace {

using api::admin::InstanceInfo;
using api::admin::InstanceWorker;
using api::admin::NodeInfo;
using api::admin::ProcessReport;
using api::admin::ProcessRole;
using membership::NodeRecord;

InstanceWorker placed_worker(const Placement& placement, const NodeRecord* node) {
  InstanceWorker worker;
  worker.worker_id = placement.worker_id;
  worker.node_id = placement.node_id;
  worker.incarnation = placement.incarnation;
  worker.state = "pending";
  if (node == nullptr) return worker;
  if (!node->is_alive) {
    worker.state = "lost";
    return worker;
  }
  for (const ProcessReport& report : node->processes) {
    if (report.worker_id != placement.worker_id) continue;
    worker.state = api::admin::process_state_name(report.state);
    worker.incarnation = report.incarnation;
    worker.pid = report.pid;
    worker.address = report.address;
    worker.metrics_address = report.metrics_address;
    worker.restarts = report.restarts;
    worker.last_error = report.last_error;
  }
  return worker;
}

InstanceInfo instance(ProcessRole role, bool is_wanted, InstanceWorker worker) {
  InstanceInfo info;
  info.instance_id = worker.worker_id;
  info.role = role;
  info.is_wanted = is_wanted;
  info.workers.push_back(std::move(worker));
  return info;
}

int bucket_of(const api::admin::RoutingView& view, const std::string& worker_id) {
  for (const api::admin::ViewWorker& worker : view.workers) {
    if (worker.worker_id == worker_id) return worker.bucket;
  }
  return api::admin::kNoBucket;
}

void add_unplaced(const StoredState& state, ProcessRole role, int placed,
                  std::vector<InstanceInfo>& list) {
  std::set<int> taken;
  for (int count = placed; count < wanted_count(*state.desired, state.placements, role); ++count) {
    InstanceWorker worker;
    worker.worker_id = free_worker_name(state.placements, role, taken);
    worker.state = "pending";
    taken.insert(*parse_worker_index(worker.worker_id, role));
    list.push_back(instance(role, true, std::move(worker)));
  }
}

}  // namespace

std::vector<NodeInfo> list_nodes(const std::map<std::string, NodeRecord, std::less<>>& nodes,
                                 TimePoint now) {
  std::vector<NodeInfo> list;
  for (const auto& [node_id, node] : nodes) {
    NodeInfo info;
    info.node_id = node_id;
    info.host_id = node.host_id;
    info.address = node.address;
    info.is_alive = node.is_alive;
    info.heartbeat_age = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::max(now - node.last_heard, TimePoint::duration::zero()));
    info.processes = node.processes;
    list.push_back(std::move(info));
  }
  return list;
}

std::vector<InstanceInfo> list_instances(
    const StoredState& state, const std::map<std::string, NodeRecord, std::less<>>& nodes) {
  std::vector<InstanceInfo> list;
  for (ProcessRole role : kAllRoles) {
    int placed = 0;
    for (const Placement& placement : state.placements) {
      if (placement.role != role) continue;
      const auto node = nodes.find(placement.node_id);
      const bool is_wanted = placement.phase == PlacementPhase::kActive;
      placed += is_wanted ? 1 : 0;
      list.push_back(
          instance(role, is_wanted,
                   placed_worker(placement, node == nodes.end() ? nullptr : &node->second)));
      if (role == ProcessRole::kPrefill) {
        list.back().bucket = bucket_of(state.view, placement.worker_id);
      }
    }
    if (state.desired) add_unplaced(state, role, placed, list);
  }
  return list;
}

}  // namespace millrace::controller::core
