#include "api/entrypoint/kv_metrics.h"

#include <string_view>
#include <vector>

namespace millrace::api::entrypoint {
namespace {

std::string_view name_of(CheckResult result) {
  switch (result) {
    case CheckResult::kHit:
      return "hit";
    case CheckResult::kMiss:
      return "miss";
    case CheckResult::kTooShort:
      return "too_short";
    case CheckResult::kTimeout:
      break;
  }
  return "timeout";
}

// A check is a few round trips in one data centre: finer than latencies of answers.
std::vector<double> check_buckets_seconds() {
  return {0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2};
}

}  // namespace

KvMetrics::KvMetrics(Registry& registry)
    : checks_(registry.counter("millrace_kv_check_total",
                               "Questions for a request's stored KV, by how they ended",
                               {{"result", {"hit", "miss", "too_short", "timeout"}}})),
      seconds_(registry.histogram("millrace_kv_check_seconds",
                                  "How long requests waited for a question for their stored KV",
                                  check_buckets_seconds())) {}

void KvMetrics::checked(CheckResult result, std::chrono::duration<double> took) const {
  checks_.with({name_of(result)}).add();
  seconds_.observe(took.count());
}

}  // namespace millrace::api::entrypoint
