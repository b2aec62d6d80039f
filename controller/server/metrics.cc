#include "controller/server/metrics.h"

#include "controller/core/listing.h"
#include "controller/core/reconcile.h"

namespace millrace::controller::server {
namespace {

const std::vector<std::string>& worker_states() {
  static const std::vector<std::string> names = {"starting", "ready",   "draining", "backoff",
                                                 "failing",  "pending", "lost"};
  return names;
}

}  // namespace

ControllerMetrics::ControllerMetrics(Registry& registry)
    : events(registry.counter("millrace_controller_events_total", "Lines of the event log.")),
      heartbeats(registry.counter("millrace_controller_heartbeats_total", "Accepted heartbeats.")),
      commits(registry.counter("millrace_controller_commits_total", "Durable state changes.")),
      refusals(registry.counter("millrace_controller_refusals_total", "Refused requests.",
                                {{"reason", {"invalid", "conflict", "overload", "storage"}}})),
      epoch_(registry.gauge("millrace_controller_epoch", "Epoch of the commands.")),
      view_version_(registry.gauge("millrace_controller_view_version", "Routing view version.")),
      nodes_(registry.gauge("millrace_controller_nodes", "Nodes.", {{"state", {"alive", "dead"}}})),
      desired_(registry.gauge("millrace_controller_desired_workers", "Desired workers.",
                              {{"role", api::admin::process_role_names()}})),
      workers_(registry.gauge(
          "millrace_controller_workers", "Placed workers.",
          {{"role", api::admin::process_role_names()}, {"state", worker_states()}})) {}

void ControllerMetrics::observe(
    const core::StoredState& state,
    const std::map<std::string, membership::NodeRecord, std::less<>>& nodes) const {
  epoch_.set(static_cast<double>(state.epoch));
  view_version_.set(static_cast<double>(state.view.version));
  double alive = 0;
  for (const auto& [node_id, node] : nodes) alive += node.is_alive ? 1 : 0;
  nodes_.with({"alive"}).set(alive);
  nodes_.with({"dead"}).set(static_cast<double>(nodes.size()) - alive);
  std::map<std::pair<std::string, std::string>, double> counts;
  for (const api::admin::InstanceInfo& instance : core::list_instances(state, nodes)) {
    for (const api::admin::InstanceWorker& worker : instance.workers) {
      counts[{std::string(api::admin::process_role_name(instance.role)), worker.state}] += 1;
    }
  }
  for (api::admin::ProcessRole role : core::kAllRoles) {
    const std::string name(api::admin::process_role_name(role));
    const int wanted =
        state.desired ? core::wanted_count(*state.desired, state.placements, role) : 0;
    desired_.with({name}).set(wanted);
    for (const std::string& worker_state : worker_states()) {
      workers_.with({name, worker_state}).set(counts[{name, worker_state}]);
    }
  }
}

}  // namespace millrace::controller::server
