#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/admin/cluster.h"
#include "api/admin/process.h"
#include "api/admin/view.h"
#include "storage/map/storage_map.h"

namespace millrace::controller::core {

enum class PlacementPhase {
  kActive,     ///< the node should run it
  kReleasing,  ///< the node should not; its id stays taken until the node says it is gone
};

/// Where a worker id lives. While a placement exists its id is used nowhere else: that is what
/// keeps two processes from ever answering to one id.
struct Placement {
  std::string worker_id;  ///< "<role>-<index>"
  api::admin::ProcessRole role = api::admin::ProcessRole::kPrefill;
  int index = 0;
  std::string node_id;
  PlacementPhase phase = PlacementPhase::kActive;
  std::uint64_t incarnation = 0;       ///< the highest ever seen
  std::uint64_t changed_revision = 0;  ///< of the assignment that first showed this phase
  bool operator==(const Placement&) const = default;
};

/// Everything that survives the controller.
struct StoredState {
  std::uint64_t version = 0;  ///< counts commits
  std::uint64_t epoch = 0;
  std::uint64_t revision = 0;  ///< counts changes of what any node should run
  std::uint64_t next_event_id = 1;
  std::optional<api::admin::DesiredState> desired;
  std::vector<Placement> placements;  ///< ordered by role, then index
  /// The highest incarnation of any forgotten placement: ids are used again, incarnations are not.
  std::uint64_t retired_incarnation = 0;
  api::admin::RoutingView view;  ///< as last published
  std::optional<storage::StorageMap> storage_map;
};

}  // namespace millrace::controller::core
