#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "dataplane/cost/cost_model.h"

namespace millrace::api::admin {

enum class WorkerRole { kPrefill, kDecode };

/// "prefill" or "decode".
std::string_view role_name(WorkerRole role);
absl::StatusOr<WorkerRole> parse_role(std::string_view name);

enum class WorkerState { kStarting, kReady, kDraining };

std::string_view worker_state_name(WorkerState state);
absl::StatusOr<WorkerState> parse_worker_state(std::string_view name);

/// The bound of messages about buckets; how many there are is dataplane/routing/buckets.h's.
inline constexpr int kMaxBuckets = 16;
/// The bucket of a worker that has none (yet).
inline constexpr int kNoBucket = -1;
/// Input lengths that edges of buckets may be: 1 to this.
inline constexpr std::uint64_t kMaxBucketEdge = std::uint64_t{1} << 40;

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
  /// A prefill worker's: the range of input lengths that it serves (dataplane/routing/buckets.h).
  int bucket = kNoBucket;
};

/// An entrypoint that is ready, as the others see it.
struct ViewEntrypoint {
  std::string entrypoint_id;
  std::uint64_t incarnation = 0;
  std::string directory_address;  ///< host:port of its shard of the window directory
  bool operator==(const ViewEntrypoint&) const = default;
};

/// The cost model that all entrypoints count by.
struct PublishedCost {
  std::uint64_t version = 0;  ///< grows with every other model
  dataplane::cost::CostModel cost;

  friend bool operator==(const PublishedCost&, const PublishedCost&) = default;
};

/// What the controller publishes for entrypoints: who serves what. Immutable; a newer one replaces
/// it.
struct RoutingView {
  std::uint64_t version = 0;  ///< grows with every change, over controller restarts too
  std::uint64_t epoch = 0;
  std::string model_id;
  std::string artifact_digest_hex;
  std::vector<ViewWorker> workers;            ///< ordered by worker_id
  std::vector<ViewEntrypoint> entrypoints;    ///< ordered by entrypoint_id
  std::optional<PublishedCost> prefill_cost;  ///< nullopt: nothing was measured yet
  /// The input lengths, in tokens, at which buckets 1, 2, ... begin, ascending; empty: the default
  /// ones (dataplane/routing/buckets.h).
  std::vector<std::uint64_t> bucket_edges;
};

std::string to_json(const RoutingView& view);
absl::StatusOr<RoutingView> parse_routing_view(std::string_view json);

}  // namespace millrace::api::admin
