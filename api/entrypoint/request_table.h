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

#include "api/entrypoint/balancer.h"
#include "api/entrypoint/engine_pool.h"
#include "api/entrypoint/entrypoint_metrics.h"
#include "api/entrypoint/kv_scope.h"
#include "api/entrypoint/request_flow.h"
#include "api/recipe/conversation.h"
#include "common/http/event_loop.h"
#include "common/log/log.h"

namespace millrace::api::entrypoint {

/// Where the output of a request's choices goes. Destroyed by the table when the request is over.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  /// Of the choice's prompt, so many tokens need not be run. At most once, before its first token.
  virtual void cached(std::uint32_t choice, std::uint32_t tokens) = 0;
  /// How the choice ended when it wants no more tokens (a stop string was found, or the tool calls
  /// are over): it is finished then, and nothing else is called for it. Otherwise nullopt.
  virtual std::optional<Outcome> deliver(std::uint32_t choice,
                                         const std::vector<recipe::GeneratedToken>& tokens) = 0;
  /// The engine generates no more, for its reason; how the choice ended.
  virtual Outcome complete(std::uint32_t choice, recipe::FinishReason reason) = 0;
  /// A choice failed, and with it the request: nothing else is called.
  virtual void fail(const absl::Status& status) = 0;
};

/// One of a request's answers, which the engines see as a request of its own.
struct EngineChoice {
  std::vector<TokenId> prompt;
  std::uint64_t seed = 0;
  std::uint32_t max_new_tokens = 1;
  /// Shared by choices of one prompt; null: no KV is looked for, and none stored.
  std::shared_ptr<const KvScope> kv = nullptr;
};

/// What a request needs of the engines.
struct EngineRequest {
  std::string request_id;
  std::vector<EngineChoice> choices;  ///< at least one
  recipe::Sampling sampling;
  TimePoint arrival;
  TimePoint deadline;
};

/// KV blocks that a request of so many tokens may come to hold at a worker of that role.
std::int64_t kv_blocks_needed(std::uint64_t tokens, std::uint64_t max_new_tokens,
                              admin::WorkerRole role);

/// All accepted requests: to the workers as the balancer says, events to the requests they belong
/// to, tokens to the sinks. Every choice of a request ends exactly once: complete, failed (its
/// deadline at the latest) or cancelled; when one fails, its siblings are cancelled. Sizes and
/// metrics count choices. Belongs to the loop's thread.
class RequestTable {
 public:
  /// All borrowed. `on_change` is called after requests ended.
  RequestTable(common::http::EventLoop& loop, Logger log, const EntrypointMetrics& metrics,
               EnginePool& pool, Balancer& balancer, std::function<void()> on_change);
  ~RequestTable();

  void add(EngineRequest request, std::unique_ptr<OutputSink> sink);

  /// The client has gone: ends the request everywhere and destroys its sink.
  void cancel(const std::string& request_id);

  void on_events(const std::string& worker_id, const proto::v1::EngineEvents& events);
  void on_lost(const std::string& worker_id);
  /// Gives waiting requests to workers, as far as there is room, or offers them.
  void dispatch();

  std::size_t size() const { return entries_.size(); }
  /// Choices that have no token yet.
  std::size_t waiting() const { return waiting_for_first_token_; }

 private:
  struct Request;
  struct Entry;
  using Order = std::uint64_t;  // of arrival

  void apply(Order order, const FlowEvent& event);
  std::optional<Outcome> run(Entry& entry, const FlowCommand& command);
  bool try_assign(Order order);
  void seek_prefill(Order order, Entry& entry);
  bool seek_decode(Order order, Entry& entry);
  void serve_prefills();
  void on_claim(const std::string& worker_id, const proto::v1::EngineEvents& events);
  void start(Entry& entry, const std::string& worker_id, std::uint32_t attempt,
             proto::v1::EngineCommand command, const dataplane::routing::Charge& charge);
  void refuse_too_long(Order order);
  void fail(Order order, const absl::Status& status);
  void finish(Order order, Outcome outcome);
  void settle(Entry& entry);
  void update_counts(Entry& entry);
  void arm_retry();

  common::http::EventLoop& loop_;
  const Logger log_;
  const EntrypointMetrics& metrics_;
  EnginePool& pool_;
  Balancer& balancer_;
  const std::function<void()> on_change_;
  Order next_order_ = 1;
  std::unordered_map<std::string, std::unique_ptr<Request>> requests_;  // by id
  std::map<Order, std::unique_ptr<Entry>> entries_;                     // their choices
  std::unordered_map<std::string, Order> order_of_;                     // by the choice's id
  std::set<Order> unassigned_;  // want a worker now or after a back-off, and are not offered yet
  std::size_t waiting_for_first_token_ = 0;
  std::uint64_t pending_tokens_ = 0;  // of choices that no decode worker has yet
  common::http::EventLoop::Timer retry_;
  common::http::EventLoop::Timer news_;
};

}  // namespace millrace::api::entrypoint
