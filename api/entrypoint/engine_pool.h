#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/admin/view.h"
#include "api/entrypoint/charge_book.h"
#include "api/entrypoint/engine_link.h"
#include "common/http/event_loop.h"
#include "common/log/log.h"
#include "common/time_point.h"
#include "dataplane/routing/least_loaded.h"

namespace millrace::api::entrypoint {

/// Bounds of the connections to workers.
struct EnginePoolLimits {
  /// Requests waiting at one prefill worker (by its report and our open charges) before more wait
  /// here instead, where any worker that gets free can take them.
  std::uint64_t waiting_per_prefill_worker = 16;
  std::chrono::milliseconds first_reconnect{50};
  std::chrono::milliseconds longest_reconnect{2000};
  /// Workers report at least every 200 ms; after this silence a stream counts as broken.
  std::chrono::milliseconds silence{5000};
};

/// What the engines can do for a request now.
enum class Capacity {
  kNow,      ///< there is a worker for it
  kLater,    ///< all suitable workers are busy
  kNever,    ///< there are workers, but no KV pool could ever hold it
  kNoEngine  ///< no worker of the role
};

/// The workers of the routing view, and a stream to each of them: connects, reconnects with bounded
/// back-off, watches for silence, keeps load reports and charges, picks the least loaded.
///
/// A worker that left the view gets nothing new; its stream stays for what still runs there.
/// Belongs to the loop's thread.
class EnginePool {
 public:
  struct Callbacks {
    std::function<void(const std::string& worker_id, const proto::v1::EngineEvents&)> on_events;
    std::function<void(const std::string& worker_id)> on_lost;
    /// Capacity may have appeared: a worker came up or reported its load.
    std::function<void()> on_capacity;
  };
  EnginePool(common::http::EventLoop& loop, Logger log, std::string model_id,
             std::string entrypoint_id, const EnginePoolLimits& limits, Callbacks callbacks);
  ~EnginePool();

  /// Takes over a newer view. One of another model is refused (false): its workers stay unknown.
  bool apply_view(const admin::RoutingView& view);

  struct Choice {
    Capacity capacity = Capacity::kNoEngine;
    std::string worker_id;  ///< with kNow
  };
  /// `pending_tokens`: of all requests that have no decode worker yet, this one included.
  Choice choose(admin::WorkerRole role, const dataplane::routing::RequestSize& size,
                std::uint64_t pending_tokens) const;

  /// Whether both roles have a worker that takes requests.
  bool is_serving() const;

  /// Sends a start and charges its size.
  void start(const std::string& worker_id, proto::v1::EngineCommand command,
             const dataplane::routing::RequestSize& size);
  /// Sends any other command; a worker that is gone needs none.
  void send(const std::string& worker_id, proto::v1::EngineCommand command);

  /// How many workers of a role take requests.
  std::size_t accepting(admin::WorkerRole role) const;

 private:
  struct Slot;
  void connect(Slot& slot);
  void on_events(const std::string& worker_id, const proto::v1::EngineEvents& events);
  void on_down(const std::string& worker_id, const absl::Status& reason);
  void watch(Slot& slot);
  void drop(const std::string& worker_id);
  std::vector<const Slot*> slots_of(admin::WorkerRole role) const;

  common::http::EventLoop& loop_;
  const Logger log_;
  const std::string model_id_;
  const std::string entrypoint_id_;
  const EnginePoolLimits limits_;
  const Callbacks callbacks_;
  std::string artifact_digest_;  // raw bytes
  std::map<std::string, std::unique_ptr<Slot>> slots_;
};

}  // namespace millrace::api::entrypoint
