#pragma once

#include <cstdint>

#include "common/metrics/metrics.h"
#include "storage/fetch/window_types.h"

namespace millrace::storage::fetch {

/// The counters of the core for windows as `millrace_swa_*`. One thread.
class WindowMetrics {
 public:
  /// Makes them, at zero. The registry must outlive this.
  WindowMetrics(Registry& registry, std::uint32_t slot_count);

  /// Adds what has come since the last call, and sets what is there now.
  void publish(const WindowCounters& now);

 private:
  const std::uint32_t slot_count_;
  WindowCounters last_;
  MetricFamily<Counter> puts_;
  MetricFamily<Counter> hits_;
  MetricFamily<Counter> misses_;
  Counter evictions_;
  Counter expiries_;
  Counter leases_lost_;
  MetricFamily<Gauge> slots_;
  Gauge peer_reads_;
};

}  // namespace millrace::storage::fetch
