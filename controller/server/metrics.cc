#include "controller/server/metrics.h"

#include <algorithm>

#include "common/str_cat.h"
#include "controller/core/listing.h"
#include "controller/core/reconcile.h"
#include "dataplane/routing/buckets.h"

namespace millrace::controller::server {
namespace {

using dataplane::routing::kBucketCount;

const std::vector<std::string>& worker_states() {
  static const std::vector<std::string> names = {"starting", "ready",   "draining", "backoff",
                                                 "failing",  "pending", "lost"};
  return names;
}

std::vector<std::string> round_outcomes() {
  std::vector<std::string> names;
  for (const buckets::SplitOutcome outcome : buckets::kAllSplitOutcomes) {
    names.emplace_back(buckets::to_string(outcome));
  }
  return names;
}

std::vector<std::string> bucket_labels() {
  std::vector<std::string> labels;
  labels.reserve(kBucketCount);
  for (int bucket = 0; bucket < kBucketCount; ++bucket) labels.push_back(str_cat(bucket));
  return labels;
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
      workers_(
          registry.gauge("millrace_controller_workers", "Placed workers.",
                         {{"role", api::admin::process_role_names()}, {"state", worker_states()}})),
      bucket_moves_(registry.counter("millrace_bucket_moves_total",
                                     "Prefill instances that changed their bucket.")),
      bucket_rounds_(registry.counter("millrace_bucket_rounds_total",
                                      "Rounds of the split of buckets, by what came of them.",
                                      {{"outcome", round_outcomes()}})),
      bucket_instances_(registry.gauge("millrace_bucket_instances", "Ready prefill instances.",
                                       {{"bucket", bucket_labels()}})),
      bucket_demand_(registry.gauge("millrace_bucket_demand_seconds",
                                    "Predicted prefill compute that arrived in the last round.",
                                    {{"bucket", bucket_labels()}})),
      prefill_cost_version_(
          registry.gauge("millrace_prefill_cost_version", "Published cost model; 0 = none yet.")) {}

void ControllerMetrics::count(const core::BalanceRound& round) const {
  bucket_moves_.add(static_cast<double>(round.moves.size()));
  bucket_rounds_.with({buckets::to_string(round.outcome)}).add();
}

void ControllerMetrics::observe_buckets(const api::admin::RoutingView& view,
                                        const buckets::Demand& last_demand) const {
  constexpr double kNanosecondsPerSecond = 1e9;
  for (int bucket = 0; bucket < kBucketCount; ++bucket) {
    const auto instances = std::count_if(
        view.workers.begin(), view.workers.end(), [&](const api::admin::ViewWorker& worker) {
          return worker.bucket == bucket && worker.state == api::admin::WorkerState::kReady;
        });
    const std::string label = str_cat(bucket);
    bucket_instances_.with({label}).set(static_cast<double>(instances));
    bucket_demand_.with({label}).set(
        static_cast<double>(last_demand[static_cast<std::size_t>(bucket)]) / kNanosecondsPerSecond);
  }
  prefill_cost_version_.set(view.prefill_cost ? static_cast<double>(view.prefill_cost->version)
                                              : 0.0);
}

void ControllerMetrics::observe(
    const core::StoredState& state,
    const std::map<std::string, membership::NodeRecord, std::less<>>& nodes,
    const buckets::Demand& last_demand) const {
  observe_buckets(state.view, last_demand);
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
