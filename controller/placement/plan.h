#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "controller/placement/shape.h"

/// Where experts shall be: the controller's planner.
///
/// Every layer is planned by itself, from the loads of the last window and from where its experts
/// are. It tries, from the plan that moves least to the one that balances best, to keep what is
/// there and exchange a little; only if that misses the target it packs anew and gives the packed
/// ranks to those that already have most of them. Pure; equal inputs give equal plans.
namespace millrace::controller::placement {

/// Loads of one window.
///
/// counts  [layer, expert] tokens that were sent to each (logical) expert, from 0 to kMaxLoad
struct ExpertLoads {
  int layer_count = 0;
  int expert_count = 0;
  std::vector<double> counts;

  std::span<const double> layer(int layer_index) const {
    return std::span(counts).subspan(
        static_cast<std::size_t>(layer_index) * static_cast<std::size_t>(expert_count),
        static_cast<std::size_t>(expert_count));
  }
};

/// More tokens than a window can have; larger numbers are an error of who counts.
inline constexpr double kMaxLoad = 1e15;

/// What came of a layer.
enum class LayerOutcome {
  kMoves,         ///< experts shall move
  kRepairs,       ///< experts must move, whatever it gains: the placement lacks an expert, has an
                  ///< empty slot or two copies on one rank, or has other slots
  kNoTraffic,     ///< no token in the window; stays
  kTooLittleGain  ///< the best plan gains less than the minimum; stays
};
std::string_view to_string(LayerOutcome outcome);

/// A slot that gets another expert.
struct ExpertMove {
  int layer = 0;
  int slot = 0;
  int expert = 0;
  /// A rank that has the expert in the current placement: the slot's own, else one of its node,
  /// else any, the lower first. kNoSource: no rank has it; it comes from the checkpoint. Moves of a
  /// layer overlap: a source slot may be overwritten by the same plan, so read before you write.
  int from_rank = 0;
  bool operator==(const ExpertMove&) const = default;
};
inline constexpr int kNoSource = -1;

struct LayerPlan {
  LayerOutcome outcome = LayerOutcome::kNoTraffic;
  std::vector<int> physical_to_logical;               ///< the expert of each slot
  std::vector<std::vector<int>> logical_to_physical;  ///< the slots of each expert, ascending
  std::vector<int> copies;                            ///< of each expert
  std::vector<ExpertMove> moves;                      ///< by slot; empty when the layer stays
  double imbalance_before = 1.0;  ///< max/mean rank load of the window where experts are
  double imbalance_after = 1.0;   ///< the same where they will be
};

struct Plan {
  ExpertShape shape;
  std::vector<LayerPlan> layers;

  /// Nothing moves: layers say why.
  bool is_empty() const { return move_count() == 0; }
  int move_count() const;
  /// The placement when all moves are done.
  Placement placement() const;
};

/// Plans all layers.
///
/// current  the placement that the ranks have, with as many layers and ranks as the shape; its
/// slots
///          per rank may be others (after ranks were lost or added, see with_ranks). Slots that are
///          kEmptySlot hold nothing.
///
/// kInvalidArgument: shape or settings break a rule; a load is NaN, negative or above kMaxLoad
/// (layer and expert named); loads or placement do not fit the shape; a slot names no expert.
/// kFailedPrecondition: less slots than experts (both numbers).
absl::StatusOr<Plan> plan_experts(const ExpertShape& shape, const PlannerSettings& settings,
                                  const ExpertLoads& loads, const Placement& current);

/// Max/mean rank load of one layer, each expert's load divided evenly over its copies. Loads of
/// experts without a copy count for no rank. 1 when no rank has load.
///
/// experts_of_slots  [slot], the slots of rank_count ranks
double imbalance_of(std::span<const double> loads, std::span<const int> experts_of_slots,
                    int rank_count);

/// In how many slots two placements of the same slots differ.
int moved_slots(const Placement& before, const Placement& after);

}  // namespace millrace::controller::placement
