#pragma once

#include <map>
#include <string>

#include "common/metrics/metrics.h"
#include "controller/buckets/buckets.h"
#include "controller/core/balancer.h"
#include "controller/core/stored_state.h"
#include "controller/membership/membership.h"

namespace millrace::controller::server {

/// What the controller exposes at /metrics. The registry must outlive it.
class ControllerMetrics {
 public:
  explicit ControllerMetrics(Registry& registry);

  /// Brings the gauges up to date; called when somebody scrapes.
  void observe(const core::StoredState& state,
               const std::map<std::string, membership::NodeRecord, std::less<>>& nodes,
               const buckets::Demand& last_demand) const;

  /// Counts a round of the split of buckets.
  void count(const core::BalanceRound& round) const;

  Counter events;      ///< lines written to the event log
  Counter heartbeats;  ///< accepted ones
  Counter commits;
  MetricFamily<Counter> refusals;  ///< by reason: "invalid", "conflict", "overload", "storage"

 private:
  void observe_buckets(const api::admin::RoutingView& view,
                       const buckets::Demand& last_demand) const;

  Gauge epoch_;
  Gauge view_version_;
  MetricFamily<Gauge> nodes_;    // by state
  MetricFamily<Gauge> desired_;  // by role
  MetricFamily<Gauge> workers_;  // by role and state
  Counter bucket_moves_;
  MetricFamily<Counter> bucket_rounds_;   // by outcome
  MetricFamily<Gauge> bucket_instances_;  // by bucket
  MetricFamily<Gauge> bucket_demand_;     // by bucket
  Gauge prefill_cost_version_;
};

}  // namespace millrace::controller::server
