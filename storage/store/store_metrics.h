#pragma once

#include "common/metrics/metrics.h"
#include "storage/store/store_types.h"

namespace millrace::storage::store {

/// A client's counters as `millrace_storage_client_*`. One thread.
class StoreMetrics {
 public:
  /// Makes them, at zero. The registry must outlive this.
  explicit StoreMetrics(Registry& registry);

  /// Adds what has come since the last call.
  void publish(const StoreCounters& now);
  void observe_read(bool is_hit, double seconds);
  void observe_write(double seconds);

 private:
  void publish_reads(const StoreCounters& now);

  StoreCounters last_;
  MetricFamily<Counter> reads_;
  Counter read_bytes_;
  Counter degraded_reads_;
  Counter hedged_reads_;
  Counter probes_;
  MetricFamily<Counter> shard_defects_;
  MetricFamily<Counter> shard_answers_;
  Counter missed_deadlines_;
  Counter repairs_;
  MetricFamily<Counter> writes_;
  Counter written_bytes_;
  Counter queried_keys_;
  Counter present_keys_;
  Counter touched_keys_;
  Counter dropped_touches_;
  Gauge read_bytes_in_flight_;
  Gauge late_bytes_in_flight_;
  Gauge waiting_reads_;
  Gauge write_bytes_in_flight_;
  Gauge nodes_on_probation_;
  MetricFamily<Histogram> read_seconds_;
  Histogram write_seconds_;
};

}  // namespace millrace::storage::store
