#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "api/admin/process.h"
#include "common/metrics/metrics.h"

namespace millrace::agent::telemetry {

/// What the agent exposes at /metrics. The registry must outlive it.
class AgentMetrics {
 public:
  explicit AgentMetrics(Registry& registry);

  /// Brings what is known of the processes up to date. One thread at a time.
  void observe(const std::vector<api::admin::ProcessReport>& processes);

  MetricFamily<Counter> starts;      ///< by role
  MetricFamily<Counter> failures;    ///< by role: failed starts, and ends that nobody asked for
  MetricFamily<Counter> heartbeats;  ///< by result: "answered", "failed"
  MetricFamily<Counter> refusals;    ///< assignments, by reason: "old_epoch", "old_revision"
  Gauge is_connected;                ///< 1 while the last heartbeat was answered
  Gauge epoch;

 private:
  MetricFamily<Gauge> processes_;                       // by role and state
  std::map<std::string, std::uint64_t> restarts_seen_;  // by worker id; only present processes
};

}  // namespace millrace::agent::telemetry
