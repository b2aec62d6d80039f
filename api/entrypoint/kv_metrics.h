#pragma once

#include <chrono>

#include "common/metrics/metrics.h"

namespace millrace::api::entrypoint {

/// How a CHECK ended, for the label of millrace_kv_check_total.
enum class CheckResult {
  kHit,       ///< of a prompt at least, blocks are stored
  kMiss,      ///< of none
  kTooShort,  ///< nothing was asked: no block of these prompts can be used
  kTimeout,   ///< counted as missing: what was not known in time
};

/// What an entrypoint counts about stored KV, made at the start.
class KvMetrics {
 public:
  explicit KvMetrics(Registry& registry);

  void checked(CheckResult result, std::chrono::duration<double> took) const;

 private:
  MetricFamily<Counter> checks_;
  Histogram seconds_;
};

}  // namespace millrace::api::entrypoint
