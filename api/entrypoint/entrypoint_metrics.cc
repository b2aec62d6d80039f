#include "api/entrypoint/entrypoint_metrics.h"

namespace millrace::api::entrypoint {
namespace {

std::string_view name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kStop:
      return "stop";
    case Outcome::kLength:
      return "length";
    case Outcome::kStopString:
      return "stop_string";
    case Outcome::kToolCalls:
      return "tool_calls";
    case Outcome::kCancelled:
      return "cancelled";
    case Outcome::kDeadline:
      return "deadline";
    case Outcome::kError:
      break;
  }
  return "error";
}

std::string_view name_of(Refusal reason) {
  switch (reason) {
    case Refusal::kInvalid:
      return "invalid";
    case Refusal::kQueueFull:
      return "queue_full";
    case Refusal::kNoEngine:
      return "no_engine";
    case Refusal::kDraining:
      return "draining";
    case Refusal::kUnauthenticated:
      break;
  }
  return "unauthenticated";
}

std::string_view name_of(RerouteReason reason) {
  return reason == RerouteReason::kWorkerLost ? "worker_lost" : "worker_refused";
}

/// Empty for kNone.
std::string_view name_of(recipe::CallProblem problem) {
  using recipe::CallProblem;
  switch (problem) {
    case CallProblem::kBadName:
      return "bad_name";
    case CallProblem::kUnknownTool:
      return "unknown_tool";
    case CallProblem::kBadKey:
      return "bad_key";
    case CallProblem::kRepeatedKey:
      return "repeated_key";
    case CallProblem::kTooManyParameters:
      return "too_many_parameters";
    case CallProblem::kBadJson:
      return "bad_json";
    case CallProblem::kStrayText:
      return "stray_text";
    case CallProblem::kWrappedTwice:
      return "wrapped_twice";
    case CallProblem::kNone:
      break;
  }
  return "";
}

}  // namespace

EntrypointMetrics::EntrypointMetrics(Registry& registry)
    : requests_(registry.counter(
          "millrace_requests_total", "Accepted requests by how they ended.",
          {{"outcome",
            {"stop", "length", "stop_string", "tool_calls", "cancelled", "deadline", "error"}}})),
      refused_(registry.counter(
          "millrace_requests_refused_total", "Requests that were not accepted, by reason.",
          {{"reason", {"invalid", "queue_full", "no_engine", "draining", "unauthenticated"}}})),
      reroutes_(registry.counter("millrace_reroutes_total",
                                 "Requests that began again on another engine, by reason.",
                                 {{"reason", {"worker_lost", "worker_refused"}}})),
      call_problems_(registry.counter(
          "millrace_tool_call_problems_total",
          "Answers that ended at a tool call which could not be completed, by reason.",
          {{"reason",
            {"bad_name", "unknown_tool", "bad_key", "repeated_key", "too_many_parameters",
             "bad_json", "stray_text", "wrapped_twice"}}})),
      claims_(registry.counter(
          "millrace_prefill_claims_answered_total",
          "Requests that prefill workers asked for: granted, or gone to another one before.",
          {{"answer", {"granted", "gone"}}})),
      prompt_tokens_(
          registry.counter("millrace_prompt_tokens_total", "Prompt tokens of accepted requests.")),
      prefix_query_tokens_(
          registry.counter("millrace_prefix_query_tokens_total",
                           "Prompt tokens of prefilled requests whose KV was looked for.")),
      prefix_hit_tokens_(registry.counter(
          "millrace_prefix_hit_tokens_total",
          "Of these tokens, those that were not computed, because their KV was stored.")),
      generated_tokens_(registry.counter("millrace_generated_tokens_total",
                                         "Tokens that engines generated for requests.")),
      time_to_first_token_(registry.histogram("millrace_time_to_first_token_seconds",
                                              "From the arrival of a request to its first token.",
                                              latency_buckets_seconds())),
      time_per_output_token_(
          registry.histogram("millrace_time_per_output_token_seconds",
                             "Mean time between the tokens of a request, after the first.",
                             latency_buckets_seconds())),
      waiting_(registry.gauge("millrace_requests_waiting", "Requests without a token yet.")),
      running_(registry.gauge("millrace_requests_running", "Requests that have a token.")),
      workers_(registry.gauge("millrace_engine_workers", "Engine workers that take requests.",
                              {{"role", {"prefill", "decode"}}})),
      open_charges_(registry.gauge("millrace_open_charges",
                                   "Starts that are charged to engine workers and not over.")),
      view_version_(registry.gauge("millrace_routing_view_version",
                                   "Version of the routing view in use; 0 = none yet.")) {}

void EntrypointMetrics::ended(Outcome outcome) const { requests_.with({name_of(outcome)}).add(); }
void EntrypointMetrics::refused(Refusal reason) const { refused_.with({name_of(reason)}).add(); }
void EntrypointMetrics::call_failed(recipe::CallProblem problem) const {
  if (problem != recipe::CallProblem::kNone) call_problems_.with({name_of(problem)}).add();
}
void EntrypointMetrics::rerouted(RerouteReason reason) const {
  reroutes_.with({name_of(reason)}).add();
}

void EntrypointMetrics::claimed(ClaimAnswer answer) const {
  claims_.with({answer == ClaimAnswer::kGranted ? "granted" : "gone"}).add();
}

void EntrypointMetrics::set_requests(std::size_t waiting, std::size_t running) const {
  waiting_.set(static_cast<double>(waiting));
  running_.set(static_cast<double>(running));
}

void EntrypointMetrics::set_workers(std::size_t prefill, std::size_t decode) const {
  workers_.with({"prefill"}).set(static_cast<double>(prefill));
  workers_.with({"decode"}).set(static_cast<double>(decode));
}

}  // namespace millrace::api::entrypoint
