#pragma once

#include "common/metrics/metrics.h"
#include "storage/fetch/fetch_types.h"

namespace millrace::storage::fetch {

/// The core's counters as `millrace_storage_fetch_*`. One thread.
class FetchMetrics {
 public:
  /// Makes them, at zero. The registry must outlive this.
  FetchMetrics(Registry& registry, std::uint32_t read_slots, std::uint32_t write_slots);

  /// Adds what has come since the last call, and sets what is there now.
  void publish(const FetchCounters& now);
  void observe_fetch(double seconds);

 private:
  const std::uint32_t read_slot_count_;
  const std::uint32_t write_slot_count_;
  FetchCounters last_;
  Counter fetches_;
  MetricFamily<Counter> ends_;
  Counter asked_blocks_;
  Counter ready_blocks_;
  Counter shared_blocks_;
  Counter reads_;
  Counter unwanted_reads_;
  Counter slot_waits_;
  Counter leases_lost_;
  MetricFamily<Counter> stores_;
  Gauge sessions_;
  Gauge open_fetches_;
  Gauge queued_blocks_;
  MetricFamily<Gauge> read_slots_;
  MetricFamily<Gauge> write_slots_;
  Gauge leased_blocks_;
  Histogram fetch_seconds_;
};

}  // namespace millrace::storage::fetch
