#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "api/entrypoint/api_keys.h"
#include "api/entrypoint/balancer.h"
#include "api/entrypoint/caller.h"
#include "api/entrypoint/demand_reporter.h"
#include "api/entrypoint/engine_pool.h"
#include "api/entrypoint/entrypoint_metrics.h"
#include "api/entrypoint/generation_session.h"
#include "api/entrypoint/kv_service.h"
#include "api/entrypoint/request_table.h"
#include "api/entrypoint/responses_service.h"
#include "api/entrypoint/view_poller.h"
#include "api/recipe/deployment.h"
#include "api/recipe/models.h"
#include "api/recipe/prepared_request.h"
#include "common/http/event_loop.h"
#include "common/http/http_server.h"
#include "common/log/log.h"
#include "common/mailbox.h"
#include "common/metrics/metrics.h"

namespace millrace::api::entrypoint {

struct EntrypointOptions {
  std::string listen;          ///< host:port for clients
  std::string controller_url;  ///< http://host:port
  std::string entrypoint_id;
  int context_tokens = 0;  ///< prompt and answer together, from the model's configuration
  std::uint32_t default_max_tokens = 8192;  ///< when a request names no limit
  std::size_t max_queue = 512;              ///< requests without a token yet; over it: 429
  std::chrono::milliseconds request_deadline{300'000};
  std::chrono::milliseconds view_period{200};
  std::chrono::milliseconds report_period{1000};  ///< of demand, to the controller
  std::chrono::milliseconds keep_alive{10'000};   ///< comments on a stream that is silent
  std::string response_store;                     ///< file of stored responses; empty = in memory
  StoreBounds stored_responses;
  /// Whom requests are taken from at first; null: from everybody, who are then one account.
  std::shared_ptr<const ApiKeys> api_keys;
  std::optional<KvOptions> kv;  ///< without it no stored KV is looked for, and none is stored
  common::http::HttpServerLimits http;
  EnginePoolLimits engines;
  /// How requests are spread over engines; all but kMillrace are there for comparison.
  dataplane::routing::Policy balance = dataplane::routing::Policy::kMillrace;
};

/// The process clients talk to: takes requests of several protocols, has them computed by the
/// engines of the routing view, and answers. Everything runs on the event loop's thread, except
/// decoding and encoding of requests (one thread) and asking for the view (one thread).
class Entrypoint {
 public:
  /// Loop and registry are borrowed and must outlive the entrypoint; so must deployment.tokenizer.
  /// Listens at once. Errors: those of HttpServer::start and ResponseStore::open.
  static absl::StatusOr<std::unique_ptr<Entrypoint>> start(common::http::EventLoop& loop,
                                                           Logger log, Registry& registry,
                                                           recipe::Deployment deployment,
                                                           const EntrypointOptions& options);
  /// Call when the loop does not run any more.
  ~Entrypoint();

  /// host:port of the listener.
  const std::string& address() const { return server_->address(); }

  /// host:port of its shard of the window directory; empty when it keeps none.
  std::string directory_address() const {
    return kv_ == nullptr ? std::string() : kv_->directory_address();
  }

  /// Takes no new requests (503, and /ready says so), lets running ones finish, then closes the
  /// listener and calls `done` on the loop. Call on the loop's thread.
  void drain(std::function<void()> done);

  /// From the next request on these are taken; what was accepted goes on. On the loop's thread.
  void set_api_keys(std::shared_ptr<const ApiKeys> keys) { api_keys_ = std::move(keys); }

 private:
  using Writer = std::unique_ptr<common::http::ResponseWriter>;
  /// A request between its arrival and its place in the table, or its answer: being decoded.
  struct Arrival {
    Client client;
    Caller caller;
    TimePoint time;
  };
  using Work = std::function<void()>;
  /// Reads the body of a request, on the decoding thread, where it touches nothing but immutable
  /// state; the work that it returns is then done on the loop.
  using Decode = std::function<Work(const std::string& request_id, const std::string& body,
                                    const Caller& caller)>;

  Entrypoint(common::http::EventLoop& loop, Logger log, Registry& registry,
             recipe::Deployment deployment, const EntrypointOptions& options);
  void add_routes();
  void add_responses(std::unique_ptr<ResponseStore> store);
  void add_decoded(const std::string& path, const recipe::ErrorForm& errors, Decode decode);
  Work decode_explain(const std::string& request_id, const std::string& body, const Caller& caller);
  void add_generation(const std::string& path, const recipe::ErrorForm& errors,
                      recipe::PrepareFunction prepare);
  std::optional<Caller> authenticate(const common::http::ServerRequest& request,
                                     const Client& client) const;
  void receive(std::string body, Client client, const Caller& caller, const Decode& decode);
  std::optional<Arrival> take_arrival(const std::string& request_id);
  void answer(const std::string& request_id, const absl::StatusOr<std::string>& body);
  KvService::Blocks name_blocks(const Caller& caller, const recipe::PreparedRequest& request) const;
  using Findings = std::vector<KvFinding>;
  void look_up(const KvService::Blocks& blocks, std::function<void(const Findings&)> then);
  void admit(const std::string& request_id, absl::StatusOr<recipe::PreparedRequest> prepared,
             const Findings& findings);
  void admit_response(const std::string& request_id,
                      absl::StatusOr<recipe::PreparedResponse> prepared, const Findings& findings);
  bool take_view(const admin::RoutingView& view);
  admin::EntrypointReport demand_report() const;
  absl::Status check_capacity(std::size_t prompt_tokens, std::uint32_t max_new_tokens) const;
  absl::StatusOr<std::vector<EngineChoice>> choices_of(const recipe::PreparedRequest& prepared,
                                                       const Findings& findings);
  absl::StatusOr<std::uint32_t> output_limit(const recipe::PreparedRequest& prepared,
                                             std::size_t prompt_tokens) const;
  void refuse(const Client& client, Refusal reason, const absl::Status& status) const;
  absl::Status readiness() const;
  void check_drained();
  void close_when_idle();
  void add_models();
  recipe::ModelFacts model_facts() const;
  std::string new_request_id();

  common::http::EventLoop& loop_;
  const Logger log_;
  Registry& registry_;
  const recipe::Deployment deployment_;
  const EntrypointOptions options_;
  const EntrypointMetrics metrics_;
  const std::int64_t created_seconds_;
  std::random_device random_;  // request ids and seeds must not repeat over restarts
  const std::uint64_t incarnation_;

  std::unique_ptr<KvService> kv_;  // null without options_.kv
  std::unique_ptr<EnginePool> pool_;
  Balancer balancer_;
  std::unique_ptr<RequestTable> table_;
  std::map<std::string, Arrival> arrivals_;  // by request id
  std::unique_ptr<ResponsesService> responses_;
  std::unique_ptr<common::http::HttpServer> server_;
  std::unique_ptr<ViewPoller> poller_;
  std::unique_ptr<DemandReporter> reporter_;
  std::shared_ptr<const ApiKeys> api_keys_;
  bool has_view_ = false;
  bool is_draining_ = false;
  std::function<void()> on_drained_;
  TimePoint close_by_;
  common::http::EventLoop::Timer close_timer_;

  Mailbox<Work> decode_queue_;
  std::thread decode_thread_;
};

}  // namespace millrace::api::entrypoint
