#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "api/admin/process.h"
#include "api/admin/storage.h"
#include "api/admin/view.h"

namespace millrace::api::admin {

/// PUT and GET /api/v1/desired: what the cluster should look like. A PUT replaces all of it.
struct DesiredState {
  int prefill = 0;  ///< workers of each role, at most kMaxWorkersPerRole
  int decode = 0;
  int entrypoint = 0;  ///< at most one on a machine
  std::string model_dir;
  std::string model_id;
  std::string engine;  ///< switches for every worker; may be empty
  /// host:port for clients. Without a host (":8000") an entrypoint listens at its node's own
  /// address; with more than one of them that is the only form.
  std::string entrypoint_listen = "127.0.0.1:8000";
  std::int64_t kv_blocks = 0;      ///< per worker; 0 = the worker's own default
  std::int64_t max_sequences = 0;  ///< as above
  std::int64_t step_rows = 0;      ///< as above
  DesiredStorage storage;
  bool operator==(const DesiredState&) const = default;
};

inline constexpr int kMaxWorkersPerRole = 1024;

std::string to_json(const DesiredState& desired);
/// kInvalidArgument names the field. Counts, model_dir and model_id are required.
absl::StatusOr<DesiredState> parse_desired_state(std::string_view json);

/// One worker of an instance.
struct InstanceWorker {
  std::string worker_id;
  std::string node_id;  ///< empty while no node can take it
  std::string state;  ///< a process_state_name(), or "pending" (not reported yet), "lost" (its node
                      ///< is dead)
  std::uint64_t incarnation = 0;
  std::int64_t pid = 0;
  std::string address;
  std::string metrics_address;
  std::uint64_t restarts = 0;
  std::string last_error;
};

/// One line of GET /api/v1/instances: the workers that form one communication domain.
struct InstanceInfo {
  std::string instance_id;
  ProcessRole role = ProcessRole::kPrefill;
  bool is_wanted = true;  ///< false while it is being removed
  /// A prefill instance's: the range of input lengths that it serves (dataplane/routing/buckets.h).
  int bucket = kNoBucket;
  std::vector<InstanceWorker> workers;
};

std::string to_json(const std::vector<InstanceInfo>& instances);  ///< {"instances": [...]}
absl::StatusOr<std::vector<InstanceInfo>> parse_instances(std::string_view json);

/// One line of GET /api/v1/events: something that changed, newest last.
struct ClusterEvent {
  std::uint64_t id = 0;           ///< 1, 2, 3 ... without gaps, over controller restarts too
  std::int64_t unix_time_ms = 0;  ///< for people
  std::string kind;               ///< "node_joined", "worker_ready", ...
  std::string subject;            ///< the node, worker or setting it is about
  std::string detail;             ///< may be empty
  bool operator==(const ClusterEvent&) const = default;
};

struct EventList {
  std::uint64_t oldest_id = 0;  ///< of the events still kept; 0 = none
  std::vector<ClusterEvent> events;
};

std::string to_json(const EventList& list);
absl::StatusOr<EventList> parse_event_list(std::string_view json);

}  // namespace millrace::api::admin
