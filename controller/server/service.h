#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>

#include "absl/status/statusor.h"
#include "common/http/rest_server.h"
#include "common/log/log.h"
#include "common/mailbox.h"
#include "common/metrics/metrics.h"
#include "controller/core/controller.h"
#include "controller/server/metrics.h"
#include "controller/state/store.h"

namespace millrace::controller::server {

/// A question that the loop answers from its state.
struct NodesQuery {};
struct InstancesQuery {};
struct DesiredQuery {};
struct EventsQuery {
  std::uint64_t after = 0;
};
struct StorageStatusQuery {};
struct StorageMapQuery {
  std::uint64_t after = 0;  ///< nothing (204) unless the map is newer
};
struct MetricsQuery {};
using Query = std::variant<NodesQuery, InstancesQuery, DesiredQuery, EventsQuery,
                           StorageStatusQuery, StorageMapQuery, MetricsQuery>;

/// The shell around core::Controller: one loop thread owns the controller and the store; REST
/// threads send it events and queries through a bounded mailbox and wait for the answer. Only the
/// routing view is read without the loop.
class Service {
 public:
  /// Loads the state, commits the new epoch, and runs the loop.
  static absl::StatusOr<std::unique_ptr<Service>> start(const core::ControllerOptions& options,
                                                        std::unique_ptr<state::Store> store,
                                                        Logger log, Registry& registry);
  /// Answers what is queued and ends the loop. No caller may be left.
  ~Service();

  /// Any thread. kResourceExhausted when the mailbox is full, kUnavailable after a storage failure.
  absl::StatusOr<core::Reply> apply(core::Event event);
  /// Any thread.
  common::http::RestResponse ask(Query query);
  /// The routing view as JSON, as last published. Any thread.
  std::shared_ptr<const std::string> view_json() const;

  /// Not OK when state could not be written: the process should end, because what it would decide
  /// from here on could not be remembered. Any thread.
  absl::Status health() const;

 private:
  struct EventCall {
    core::Event event;
    std::promise<absl::StatusOr<core::Reply>> answer;
  };
  struct QueryCall {
    Query query;
    std::promise<common::http::RestResponse> answer;
  };
  using Call = std::variant<EventCall, QueryCall>;

  Service(const core::ControllerOptions& options, std::unique_ptr<state::Store> store,
          core::StoredState stored, Logger log, Registry& registry);

  void run_loop();
  void serve(Call& call);
  absl::StatusOr<core::Reply> apply_on_loop(const core::Event& event);
  absl::Status execute(core::Decision& decision);
  common::http::RestResponse answer(const NodesQuery&);
  common::http::RestResponse answer(const InstancesQuery&);
  common::http::RestResponse answer(const DesiredQuery&);
  common::http::RestResponse answer(const EventsQuery& query);
  common::http::RestResponse answer(const StorageStatusQuery&);
  common::http::RestResponse answer(const StorageMapQuery& query);
  common::http::RestResponse answer(const MetricsQuery&);
  void publish(const api::admin::RoutingView& view);

  const Logger log_;
  Registry& registry_;
  ControllerMetrics metrics_;
  std::unique_ptr<state::Store> store_;  // loop thread
  core::Controller controller_;          // loop thread
  std::uint64_t committed_version_ = 0;  // loop thread
  std::uint64_t published_version_ = 0;  // loop thread
  Mailbox<Call> mailbox_;

  mutable std::mutex mutex_;
  std::shared_ptr<const std::string> view_json_;  // guarded by mutex_
  absl::Status health_;                           // guarded by mutex_

  std::thread loop_;
};

}  // namespace millrace::controller::server
