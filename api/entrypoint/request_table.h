#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "api/entrypoint/engine_pool.h"
#include "api/entrypoint/entrypoint_metrics.h"
#include "api/entrypoint/request_flow.h"
#include "api/recipe/conversation.h"
#include "common/http/event_loop.h"
#include "common/log/log.h"

namespace millrace::api::entrypoint {

/// Where a request's output goes. Destroyed by the table when the request is over.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  /// How the answer ended when it wants no more tokens (a stop string was found, or the tool calls
  /// are over): it is finished then, and nothing else is called. Otherwise nullopt.
  virtual std::optional<Outcome> deliver(const std::vector<recipe::GeneratedToken>& tokens) = 0;
  /// The engine generates no more, for its reason; how the answer ended.
  virtual Outcome complete(recipe::FinishReason reason) = 0;
  virtual void fail(const absl::Status& status) = 0;
};

/// What a request needs of the engines.
struct EngineRequest {
  std::string request_id;
  std::vector<TokenId> prompt;
  recipe::Sampling sampling;
  std::uint64_t seed = 0;
  std::uint32_t max_new_tokens = 1;
  TimePoint arrival;
  TimePoint deadline;
};

/// What a request takes at a worker of that role: its tokens now, and its KV blocks there at most.
dataplane::routing::RequestSize request_size(std::uint64_t tokens, std::uint64_t max_new_tokens,
                                             admin::WorkerRole role);

/// All accepted requests: first in, first out to the workers, events to the requests they belong
/// to, tokens to the sinks. Every request ends exactly once: complete, failed (its deadline at the
/// latest) or cancelled. Belongs to the loop's thread.
class RequestTable {
 public:
  /// All borrowed. `on_change` is called after requests ended.
  RequestTable(common::http::EventLoop& loop, Logger log, const EntrypointMetrics& metrics,
               EnginePool& pool, std::function<void()> on_change);
  ~RequestTable();

  void add(const EngineRequest& request, std::unique_ptr<OutputSink> sink);

  /// The client has gone: ends the request everywhere and destroys its sink.
  void cancel(const std::string& request_id);

  void on_events(const std::string& worker_id, const proto::v1::EngineEvents& events);
  void on_lost(const std::string& worker_id);
  /// Gives waiting requests to workers, as far as there is room.
  void dispatch();

  std::size_t size() const { return entries_.size(); }
  /// Requests that have no token yet.
  std::size_t waiting() const { return waiting_for_first_token_; }

 private:
  struct Entry;
  using Order = std::uint64_t;  // of arrival

  void apply(Order order, const FlowEvent& event);
  std::optional<Outcome> run(Entry& entry, const FlowCommand& command);
  bool try_assign(Order order, bool& prefill_is_full);
  void finish(Order order, Outcome outcome);
  void update_waiting(Entry& entry);
  void arm_retry();
  dataplane::routing::RequestSize size_of(const Entry& entry, admin::WorkerRole role) const;

  common::http::EventLoop& loop_;
  const Logger log_;
  const EntrypointMetrics& metrics_;
  EnginePool& pool_;
  const std::function<void()> on_change_;
  Order next_order_ = 1;
  std::map<Order, std::unique_ptr<Entry>> entries_;
  std::unordered_map<std::string, Order> order_of_;
  std::set<Order> unassigned_;  // want a worker, now or after a back-off
  std::size_t waiting_for_first_token_ = 0;
  common::http::EventLoop::Timer retry_;
};

}  // namespace millrace::api::entrypoint
