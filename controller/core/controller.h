#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "api/admin/cluster.h"
#include "api/admin/entrypoint_report.h"
#include "api/admin/node.h"
#include "common/time_point.h"
#include "controller/core/balancer.h"
#include "controller/core/reconcile.h"
#include "controller/core/stored_state.h"
#include "controller/kv_map/storage_operator.h"
#include "controller/membership/membership.h"

namespace millrace::controller::core {

struct ControllerOptions {
  std::chrono::milliseconds heartbeat_interval{500};
  std::chrono::milliseconds node_timeout{3000};
  /// The name of the storage cluster, should one be made now; must be new each time.
  std::string new_storage_cluster_id;
  BalancerOptions balance{};
};

/// A node that is dead for so many timeouts is lost: its workers are replaced on other nodes.
inline constexpr int kLostAfterTimeouts = 10;

struct JoinEvent {
  api::admin::NodeJoin join;
};
struct HeartbeatEvent {
  std::string node_id;
  api::admin::Heartbeat heartbeat;
};
struct EntrypointReportEvent {
  std::string entrypoint_id;
  api::admin::EntrypointReport report;
};
struct SetDesiredEvent {
  api::admin::DesiredState desired;
};
struct StorageReportEvent {
  std::string node_id;
  api::admin::StorageReport report;
};
struct StorageReplaceEvent {
  api::admin::StorageReplace replace;
};
struct StorageScrubEvent {};
struct StorageEvictEvent {
  api::admin::StorageEvict evict;
};
struct TimerEvent {};
using Event = std::variant<JoinEvent, HeartbeatEvent, EntrypointReportEvent, SetDesiredEvent,
                           StorageReportEvent, StorageReplaceEvent, StorageScrubEvent,
                           StorageEvictEvent, TimerEvent>;

/// What the sender of an event is told: an error, or the reply of its kind (OK where it has none).
using Reply = std::variant<absl::Status, api::admin::NodeJoinReply, api::admin::HeartbeatReply,
                           api::admin::StorageReportReply, api::admin::StorageWish>;

/// What is to be done about an event, in this order: commit the state and the events (nothing may
/// be seen by others before it is durable), publish state.view, send the reply.
struct Decision {
  std::optional<StoredState> state;              ///< absent = nothing to commit
  std::vector<api::admin::ClusterEvent> events;  ///< with ids; the caller adds the wall-clock time
  Reply reply;
  std::optional<BalanceRound> round;  ///< of the split of buckets, when one ended; to be counted
};

/// The operator of the cluster: compares what is desired with what the agents report, and decides
/// what every node runs and what entrypoints see.
///
/// Pure: does no I/O, takes no lock, reads no clock. One thread at a time.
class Controller {
 public:
  /// `stored` is what the last controller left behind, or a default-constructed one.
  Controller(const ControllerOptions& options, StoredState stored);

  /// The first decision: a new, higher epoch. Call it once, before any event.
  Decision start(TimePoint now);

  /// Applies one event.
  Decision on_event(const Event& event, TimePoint now);

  /// When a TimerEvent is next due; nullopt = when something else happens.
  std::optional<TimePoint> next_timer() const;

  const StoredState& state() const { return state_; }
  api::admin::StorageStatus storage_status(TimePoint now) const { return storage_.status(now); }
  const buckets::Demand& last_demand() const { return balancer_.last_demand(); }
  const std::map<std::string, membership::NodeRecord, std::less<>>& nodes() const {
    return membership_.nodes();
  }

 private:
  Reply apply(const JoinEvent& event, TimePoint now);
  Reply apply(const HeartbeatEvent& event, TimePoint now);
  Reply apply(const EntrypointReportEvent& event, TimePoint now);
  Reply apply(const SetDesiredEvent& event, TimePoint now);
  Reply apply(const StorageReportEvent& event, TimePoint now);
  Reply apply(const StorageReplaceEvent& event, TimePoint now);
  Reply apply(const StorageScrubEvent& event, TimePoint now);
  Reply apply(const StorageEvictEvent& event, TimePoint now);
  Reply apply(const TimerEvent& event, TimePoint now);

  bool is_window_open(TimePoint now) const;
  void raise_epoch(std::uint64_t reported);
  void note_transitions(const membership::NodeRecord& before,
                        const api::admin::Heartbeat& heartbeat);
  bool is_known_run(const api::admin::ProcessReport& report) const;
  void observe_silence(TimePoint now);
  void reconcile_now(TimePoint now);
  void end_due_round(TimePoint now);
  void rebuild_view(TimePoint now);
  api::admin::HeartbeatReply heartbeat_reply(std::string_view node_id) const;
  void note(std::string kind, std::string subject, std::string detail = {});
  Decision take_decision(Reply reply);

  const ControllerOptions options_;
  StoredState state_;
  membership::Membership membership_;
  kv_map::StorageOperator storage_;
  Balancer balancer_;
  TimePoint started_;
  std::map<std::string, TimePoint, std::less<>>
      silent_since_;  // nodes that are placed on, not alive
  std::set<std::string, std::less<>> lost_nodes_;
  std::map<std::string, std::string> left_out_;  // worker -> reason, as last noted
  std::vector<Note> notes_;                      // of the event being applied
  std::optional<BalanceRound> round_;            // that the event being applied has ended
  bool is_state_changed_ = false;                // by the event being applied
  bool has_closed_window_ = false;
};

}  // namespace millrace::controller::core
