#pragma once

#include <map>
#include <string>

#include "common/metrics/metrics.h"
#include "controller/core/stored_state.h"
#include "controller/membership/membership.h"

namespace millrace::controller::server {

/// What the controller exposes at /metrics. The registry must outlive it.
class ControllerMetrics {
 public:
  explicit ControllerMetrics(Registry& registry);

  /// Brings the gauges up to date; called when somebody scrapes.
  void observe(const core::StoredState& state,
               const std::map<std::string, membership::NodeRecord, std::less<>>& nodes) const;

  Counter events;      ///< lines written to the event log
  Counter heartbeats;  ///< accepted ones
  Counter commits;
  MetricFamily<Counter> refusals;  ///< by reason: "invalid", "conflict", "overload", "storage"

 private:
  Gauge epoch_;
  Gauge view_version_;
  MetricFamily<Gauge> nodes_;    // by state
  MetricFamily<Gauge> desired_;  // by role
  MetricFamily<Gauge> workers_;  // by role and state
};

}  // namespace millrace::controller::server
