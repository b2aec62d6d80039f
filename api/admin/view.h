#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace::api::admin {

enum class WorkerRole { kPrefill, kDecode };

/// "prefill" or "decode".
std::string_view role_name(WorkerRole role);
absl::StatusOr<WorkerRole> parse_role(std::string_view name);

enum class WorkerState { kStarting, kReady, kDraining };

std::string_view worker_state_name(WorkerState state);
absl::StatusOr<WorkerState> parse_worker_state(std::string_view name);

/// One engine process as the routing view shows it.
struct ViewWorker {
  std::string worker_id;  ///< stable over restarts of the process
  std::string instance_id;
  std::string node_id;
  std::string host_id;  ///< workers with equal host ids share memory
  WorkerRole role = WorkerRole::kPrefill;
  WorkerState state = WorkerState::kStarting;
  std::uint64_t incarnation = 0;  ///< grows with every restart
  std::string address;            ///< host:port of its gRPC services; empty while starting
};

/// An entrypoint that is ready, as the others see it.
struct ViewEntrypoint {
  std::string entrypoint_id;
  std::uint64_t incarnation = 0;
  std::string directory_address;  ///< host:port of its shard of the window directory
  bool operator==(const ViewEntrypoint&) const = default;
};

/// What the controller publishes for entrypoints: who serves what. Immutable; a newer one replaces
/// it.
struct RoutingView {
  std::uint64_t version = 0;  ///< grows with every change, over controller restarts too
  std::uint64_t epoch = 0;
  std::string model_id;
  std::string artifact_digest_hex;
  std::vector<ViewWorker> workers;          ///< ordered by worker_id
  std::vector<ViewEntrypoint> entrypoints;  ///< ordered by entrypoint_id
};

std::string to_json(const RoutingView& view);
absl::StatusOr<RoutingView> parse_routing_view(std::string_view json);

}  // namespace millrace::api::admin
