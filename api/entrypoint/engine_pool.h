#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/admin/entrypoint_report.h"
#include "api/admin/view.h"
#include "api/entrypoint/balancer.h"
#include "api/entrypoint/engine_link.h"
#include "common/http/event_loop.h"
#include "common/log/log.h"
#include "common/time_point.h"
#include "dataplane/cost/cost_model.h"
#include "dataplane/routing/charges.h"

namespace millrace::proto::v1 {
class PrefillCost;
}  // namespace millrace::proto::v1

namespace millrace::api::entrypoint {

/// Bounds of the connections to workers.
struct EnginePoolLimits {
  std::chrono::milliseconds first_reconnect{50};
  std::chrono::milliseconds longest_reconnect{2000};
  /// Workers report at least every 200 ms; after this silence a stream counts as broken.
  std::chrono::milliseconds silence{5000};
};

/// The workers of the routing view, and a stream to each of them: connects, reconnects with bounded
/// back-off, watches for silence, keeps load reports and what was charged.
///
/// A worker that left the view gets nothing new; its stream stays for what still runs there.
/// Belongs to the loop's thread.
class EnginePool {
 public:
  struct Callbacks {
    std::function<void(const std::string& worker_id, const proto::v1::EngineEvents&)> on_events;
    std::function<void(const std::string& worker_id)> on_lost;
    /// The stream to a worker is a new one.
    std::function<void(const std::string& worker_id)> on_up;
    /// A worker is new, has changed or is gone: what is known of it now.
    std::function<void(const std::string& worker_id, const WorkerState&)> on_worker;
    /// Capacity may have appeared: a worker came up or reported its load.
    std::function<void()> on_capacity;
  };
  EnginePool(common::http::EventLoop& loop, Logger log, std::string model_id,
             std::string entrypoint_id, const EnginePoolLimits& limits, Callbacks callbacks);
  ~EnginePool();

  /// Takes over a newer view. One of another model is refused (false): its workers stay unknown.
  bool apply_view(const admin::RoutingView& view);

  /// Whether both roles have a worker that takes requests.
  bool is_serving() const;

  /// Sends a start and charges what it takes.
  void start(const std::string& worker_id, proto::v1::EngineCommand command,
             const dataplane::routing::ChargeKey& key, const dataplane::routing::Charge& charge);
  /// What was started is over; nothing when the worker, and with it the charge, is gone.
  void release(const std::string& worker_id, const dataplane::routing::ChargeKey& key);
  /// Sends any other command; a worker that is gone needs none.
  void send(const std::string& worker_id, proto::v1::EngineCommand command);

  /// How many workers of a role take requests.
  std::size_t accepting(admin::WorkerRole role) const {
    return accepting_[static_cast<std::size_t>(role)];
  }
  /// Starts that are charged and not released yet.
  std::size_t open_charges() const { return open_charges_; }

  /// What prefill costs, of the workers that have measured it.
  std::vector<admin::WorkerCost> worker_costs() const;

 private:
  struct Slot;
  void connect(Slot& slot);
  void on_events(const std::string& worker_id, const proto::v1::EngineEvents& events);
  void on_down(const std::string& worker_id, const absl::Status& reason);
  void watch(Slot& slot);
  void drop(const std::string& worker_id);
  void show(Slot& slot);
  void drop_charges(Slot& slot);
  void take_cost(Slot& slot, const proto::v1::PrefillCost& cost);

  common::http::EventLoop& loop_;
  const Logger log_;
  const std::string model_id_;
  const std::string entrypoint_id_;
  const EnginePoolLimits limits_;
  const Callbacks callbacks_;
  std::string artifact_digest_;  // raw bytes
  std::optional<dataplane::cost::CostModel> published_cost_;
  std::array<std::size_t, 2> accepting_{};  // workers that accept requests, by role
  std::size_t open_charges_ = 0;
  std::map<std::string, std::unique_ptr<Slot>> slots_;
};

}  // namespace millrace::api::entrypoint
