#pragma once

#include <chrono>
#include <string_view>

#include "absl/status/status.h"
#include "api/entrypoint/request_flow.h"
#include "api/recipe/tool_call_parser.h"
#include "common/metrics/metrics.h"

namespace millrace::api::entrypoint {

/// How an accepted request ended, for the label of millrace_requests_total.
enum class Outcome { kStop, kLength, kStopString, kToolCalls, kCancelled, kDeadline, kError };

/// Why a request was not accepted, for the label of millrace_requests_refused_total.
enum class Refusal { kInvalid, kQueueFull, kNoEngine, kDraining, kUnauthenticated };

/// What a prefill worker's claim came to.
enum class ClaimAnswer { kGranted, kGone };

/// The metrics of an entrypoint, made at the start.
class EntrypointMetrics {
 public:
  explicit EntrypointMetrics(Registry& registry);

  void ended(Outcome outcome) const;
  void refused(Refusal reason) const;
  /// A tool call could not be completed; nothing is counted for kNone.
  void call_failed(recipe::CallProblem problem) const;
  void rerouted(RerouteReason reason) const;
  void claimed(ClaimAnswer answer) const;
  void prompt(std::size_t tokens) const { prompt_tokens_.add(static_cast<double>(tokens)); }
  /// A prompt was prefilled whose KV was looked for; so many of its tokens were not run.
  void prefix(std::size_t prompt_tokens, std::size_t cached_tokens) const {
    prefix_query_tokens_.add(static_cast<double>(prompt_tokens));
    prefix_hit_tokens_.add(static_cast<double>(cached_tokens));
  }
  void generated(std::size_t tokens) const { generated_tokens_.add(static_cast<double>(tokens)); }
  void first_token(std::chrono::duration<double> since_arrival) const {
    time_to_first_token_.observe(since_arrival.count());
  }
  void per_token(std::chrono::duration<double> mean) const {
    time_per_output_token_.observe(mean.count());
  }
  void set_requests(std::size_t waiting, std::size_t running) const;
  void set_workers(std::size_t prefill, std::size_t decode) const;
  void set_open_charges(std::size_t charges) const {
    open_charges_.set(static_cast<double>(charges));
  }
  void set_view_version(std::uint64_t version) const {
    view_version_.set(static_cast<double>(version));
  }

 private:
  MetricFamily<Counter> requests_;
  MetricFamily<Counter> refused_;
  MetricFamily<Counter> reroutes_;
  MetricFamily<Counter> call_problems_;
  MetricFamily<Counter> claims_;
  Counter prompt_tokens_;
  Counter prefix_query_tokens_;
  Counter prefix_hit_tokens_;
  Counter generated_tokens_;
  Histogram time_to_first_token_;
  Histogram time_per_output_token_;
  Gauge waiting_;
  Gauge running_;
  MetricFamily<Gauge> workers_;
  Gauge open_charges_;
  Gauge view_version_;
};

}  // namespace millrace::api::entrypoint
