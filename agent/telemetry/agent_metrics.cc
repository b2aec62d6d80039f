#include "agent/telemetry/agent_metrics.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace millrace::agent::telemetry {
namespace {

const LabelSet& roles() {
  static const LabelSet set = {"role", api::admin::process_role_names()};
  return set;
}

const LabelSet& states() {
  static const LabelSet set = {"state", {"starting", "ready", "draining", "backoff", "failing"}};
  return set;
}

}  // namespace

AgentMetrics::AgentMetrics(Registry& registry)
    : starts(
          registry.counter("millrace_agent_process_starts_total", "Started processes.", {roles()})),
      failures(registry.counter("millrace_agent_process_failures_total",
                                "Processes that failed to start or ended without being told to.",
                                {roles()})),
      heartbeats(registry.counter("millrace_agent_heartbeats_total", "Heartbeats sent.",
                                  {{"result", {"answered", "failed"}}})),
      refusals(registry.counter("millrace_agent_assignment_refusals_total",
                                "Assignments that were older than one already followed.",
                                {{"reason", {"old_epoch", "old_revision"}}})),
      is_connected(registry.gauge("millrace_agent_connected",
                                  "1 while the controller answers the heartbeats.")),
      epoch(registry.gauge("millrace_agent_epoch", "Highest epoch that was obeyed.")),
      processes_(registry.gauge("millrace_agent_processes", "Supervised processes.",
                                {roles(), states()})) {}

void AgentMetrics::observe(const std::vector<api::admin::ProcessReport>& processes) {
  std::map<std::string, std::uint64_t> restarts;
  for (const api::admin::ProcessReport& process : processes) {
    // A count that went down belongs to a new process of an old name.
    const std::uint64_t before = std::min(restarts_seen_[process.worker_id], process.restarts);
    failures.with({process_role_name(process.role)})
        .add(static_cast<double>(process.restarts - before));
    restarts[process.worker_id] = process.restarts;
  }
  restarts_seen_ = std::move(restarts);
  std::map<std::pair<std::string_view, std::string_view>, double> counts;
  for (const api::admin::ProcessReport& process : processes) {
    counts[{process_role_name(process.role), process_state_name(process.state)}] += 1;
  }
  for (const std::string& role : roles().values) {
    for (const std::string& state : states().values) {
      processes_.with({role, state}).set(counts[{role, state}]);
    }
  }
}

}  // namespace millrace::agent::telemetry
