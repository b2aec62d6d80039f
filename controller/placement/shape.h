#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace::controller::placement {

/// Far above any model or cluster; numbers beyond are refused.
inline constexpr int kMaxCount = 65'536;
inline constexpr int kMaxSlots = 1 << 22;

/// What the experts of one instance are spread over. Slots are counted rank by rank: slot s belongs
/// to rank s / slots_per_rank; ranks are counted node by node.
struct ExpertShape {
  int layer_count = 0;
  int expert_count = 0;  ///< routed (logical) experts of a layer
  int rank_count = 0;    ///< EP size
  int slots_per_rank = 0;
  int node_count = 1;
  int group_count = 1;  ///< expert groups of group-limited routing; 1 = the model has none

  int slot_count() const { return rank_count * slots_per_rank; }
  /// Whole groups go to nodes, so that a token's experts lie on few of them. Otherwise, as when a
  /// rank was lost and nodes are uneven, nodes and groups are ignored.
  bool is_hierarchical() const {
    return node_count > 1 && group_count % node_count == 0 && rank_count % node_count == 0;
  }
};

/// How one role plans.
struct PlannerSettings {
  int redundant_per_rank = 0;   ///< slots of a rank beyond its share of the experts
  int window_steps = 0;         ///< N: loads are counted over the last N steps before a plan
  int interval_steps = 0;       ///< M: steps between two plans
  double balance_target = 1.0;  ///< max/mean at which a planner stops moving experts
  double minimum_gain = 0.0;    ///< max/mean that a layer must win, or it stays as it is
};

// The targets are far below what drift costs between two plans, so that a plan moves little
// (docs/balancing.md, "Expert placement", has the measurements).
inline constexpr PlannerSettings kPrefillSettings{4, 100, 1'000, 1.0005, 0.002};
inline constexpr PlannerSettings kDecodeSettings{1, 1'000, 10'000, 1.005, 0.01};

/// kInvalidArgument names the setting: 0 <= redundant, 1 <= window <= interval, target >= 1,
/// gain >= 0.
absl::Status validate(const PlannerSettings& settings);
/// kInvalidArgument names the number: all from 1 to kMaxCount, at most kMaxSlots slots, groups
/// divide the experts. kFailedPrecondition: less slots than experts, both named.
absl::Status validate(const ExpertShape& shape);

/// Whether the loads of a step (counted from 0) belong to the window before the next plan.
bool is_counted(const PlannerSettings& settings, std::uint64_t step_index);
/// Whether a plan is due when this step is over.
bool is_due(const PlannerSettings& settings, std::uint64_t step_index);

/// Slots of each rank: experts and redundant ones, with the redundant count rounded up until the
/// total divides by the ranks. `max_slots_per_rank` is what a rank has memory for; fewer redundant
/// ones are had then. kInvalidArgument: a count is out of range. kFailedPrecondition: the ranks
/// (those that survived, say) have less slots than there are experts; names both numbers.
absl::StatusOr<int> slots_per_rank(int expert_count, int rank_count, int redundant_per_rank,
                                   int max_slots_per_rank);

inline constexpr int kEmptySlot = -1;

/// Which expert is in which slot, in all layers.
struct Placement {
  int layer_count = 0;
  int rank_count = 0;
  int slots_per_rank = 0;
  std::vector<int> expert_of;  ///< [layer, slot], kEmptySlot = none

  int slot_count() const { return rank_count * slots_per_rank; }
  std::span<const int> layer(int layer_index) const {
    return std::span(expert_of).subspan(
        static_cast<std::size_t>(layer_index) * static_cast<std::size_t>(slot_count()),
        static_cast<std::size_t>(slot_count()));
  }
  bool operator==(const Placement&) const = default;
};

/// Where experts are before any load is known: slot s has expert s modulo the number of experts.
Placement identity_placement(const ExpertShape& shape);

/// The same placement after ranks went and came: new rank i is what rank kept_ranks[i] was, or an
/// empty one where that is -1. CHECKs that the ranks exist.
Placement with_ranks(const Placement& placement, std::span<const int> kept_ranks);

}  // namespace millrace::controller::placement
