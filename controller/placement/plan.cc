#include "controller/placement/plan.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/check.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "controller/placement/layer_planner.h"

namespace millrace::controller::placement {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

absl::Status validate_loads(const ExpertShape& shape, const ExpertLoads& loads) {
  if (loads.layer_count != shape.layer_count || loads.expert_count != shape.expert_count ||
      loads.counts.size() != at(shape.layer_count) * at(shape.expert_count)) {
    return absl::InvalidArgumentError(str_cat("loads are of ", loads.layer_count, " layers of ",
                                              loads.expert_count, " experts (", loads.counts.size(),
                                              " numbers); the model has ", shape.layer_count,
                                              " of ", shape.expert_count));
  }
  for (std::size_t i = 0; i < loads.counts.size(); ++i) {
    const double load = loads.counts[i];
    if (load >= 0.0 && load <= kMaxLoad) continue;  // NaN is neither
    return absl::InvalidArgumentError(str_cat("the load of layer ", i / at(shape.expert_count),
                                              ", expert ", i % at(shape.expert_count), " is ", load,
                                              "; it must be from 0 to ", kMaxLoad, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status validate_current(const ExpertShape& shape, const Placement& current) {
  if (current.layer_count != shape.layer_count || current.rank_count != shape.rank_count ||
      current.slots_per_rank < 0 ||
      current.expert_of.size() != at(shape.layer_count) * at(current.slot_count())) {
    return absl::InvalidArgumentError(str_cat("the current placement is of ", current.layer_count,
                                              " layers on ", current.rank_count, " ranks (",
                                              current.expert_of.size(), " slots); the plan is for ",
                                              shape.layer_count, " on ", shape.rank_count));
  }
  for (std::size_t i = 0; i < current.expert_of.size(); ++i) {
    const int expert = current.expert_of[i];
    if (expert >= kEmptySlot && expert < shape.expert_count) continue;
    return absl::InvalidArgumentError(str_cat(
        "layer ", i / at(current.slot_count()), ", slot ", i % at(current.slot_count()),
        " of the current placement has expert ", expert, "; there are ", shape.expert_count));
  }
  return absl::OkStatus();
}

/// Whether the slots serve as they are: the shape's, all filled, every expert there, and no rank
/// with two copies of one where that can be avoided.
bool is_usable(const ExpertShape& shape, std::span<const int> slots, int slots_per_rank) {
  if (slots_per_rank != shape.slots_per_rank) return false;
  const int experts_in_reach =
      shape.is_hierarchical() ? shape.expert_count / shape.node_count : shape.expert_count;
  std::vector<int> last_rank(at(shape.expert_count), -1);
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot] == kEmptySlot) return false;
    const int rank = static_cast<int>(slot) / slots_per_rank;
    int& last = last_rank[at(slots[slot])];
    if (last == rank && shape.slots_per_rank <= experts_in_reach) return false;
    last = rank;
  }
  return std::find(last_rank.begin(), last_rank.end(), -1) == last_rank.end();
}

void fill_maps(const ExpertShape& shape, LayerPlan& plan) {
  plan.copies.assign(at(shape.expert_count), 0);
  plan.logical_to_physical.assign(at(shape.expert_count), {});
  for (int slot = 0; slot < shape.slot_count(); ++slot) {
    const int expert = plan.physical_to_logical[at(slot)];
    ++plan.copies[at(expert)];
    plan.logical_to_physical[at(expert)].push_back(slot);
  }
}

/// For each expert the ranks that have it, ascending.
std::vector<std::vector<int>> ranks_with(const ExpertShape& shape, std::span<const int> slots,
                                         int slots_per_rank) {
  std::vector<std::vector<int>> ranks(at(shape.expert_count));
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot] == kEmptySlot) continue;
    ranks[at(slots[slot])].push_back(static_cast<int>(slot) / slots_per_rank);
  }
  return ranks;
}

int nearest(const ExpertShape& shape, const std::vector<int>& ranks, int rank) {
  if (ranks.empty()) return kNoSource;
  if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) return rank;
  const bool has_even_nodes = shape.rank_count % shape.node_count == 0;
  const int ranks_per_node = has_even_nodes ? shape.rank_count / shape.node_count : 1;
  for (const int other : ranks) {
    if (other / ranks_per_node == rank / ranks_per_node) return other;
  }
  return ranks.front();
}

std::vector<ExpertMove> moves_between(const ExpertShape& shape, int layer,
                                      std::span<const int> current, int current_slots_per_rank,
                                      const std::vector<int>& planned) {
  const std::vector<std::vector<int>> sources = ranks_with(shape, current, current_slots_per_rank);
  std::vector<ExpertMove> moves;
  for (int slot = 0; slot < shape.slot_count(); ++slot) {
    const int rank = slot / shape.slots_per_rank;
    const int place = slot % shape.slots_per_rank;
    const int before = place < current_slots_per_rank
                           ? current[at(rank * current_slots_per_rank + place)]
                           : kEmptySlot;
    const int expert = planned[at(slot)];
    if (before == expert) continue;
    moves.push_back({layer, slot, expert, nearest(shape, sources[at(expert)], rank)});
  }
  return moves;
}

LayerPlan plan_layer(const ExpertShape& shape, const PlannerSettings& settings, int layer,
                     std::span<const double> loads, const Placement& placement) {
  const std::span<const int> current = placement.layer(layer);
  const bool stays_usable = is_usable(shape, current, placement.slots_per_rank);
  const bool has_traffic =
      std::any_of(loads.begin(), loads.end(), [](double load) { return load > 0.0; });
  LayerPlan plan;
  plan.imbalance_before = imbalance_of(loads, current, shape.rank_count);
  const auto stay = [&](LayerOutcome why) {
    plan.outcome = why;
    plan.physical_to_logical.assign(current.begin(), current.end());
    plan.imbalance_after = plan.imbalance_before;
    fill_maps(shape, plan);
    return plan;
  };
  if (stays_usable && !has_traffic) return stay(LayerOutcome::kNoTraffic);
  if (stays_usable && plan.imbalance_before - 1.0 < settings.minimum_gain) {
    return stay(LayerOutcome::kTooLittleGain);
  }
  // Without traffic every expert is taken to be wanted alike.
  const std::vector<double> even(loads.size(), 1.0);
  const std::span<const double> used = has_traffic ? loads : std::span<const double>(even);
  std::vector<int> planned = plan_slots(shape, settings.balance_target, used, placement, layer);
  plan.imbalance_after = imbalance_of(loads, planned, shape.rank_count);
  if (stays_usable && plan.imbalance_before - plan.imbalance_after < settings.minimum_gain) {
    return stay(LayerOutcome::kTooLittleGain);
  }
  plan.outcome = stays_usable ? LayerOutcome::kMoves : LayerOutcome::kRepairs;
  plan.moves = moves_between(shape, layer, current, placement.slots_per_rank, planned);
  plan.physical_to_logical = std::move(planned);
  fill_maps(shape, plan);
  return plan;
}

}  // namespace

std::string_view to_string(LayerOutcome outcome) {
  switch (outcome) {
    case LayerOutcome::kMoves:
      return "moves";
    case LayerOutcome::kRepairs:
      return "repairs";
    case LayerOutcome::kNoTraffic:
      return "no_traffic";
    case LayerOutcome::kTooLittleGain:
      return "too_little_gain";
  }
  return "unknown";
}

int Plan::move_count() const {
  int count = 0;
  for (const LayerPlan& layer : layers) count += static_cast<int>(layer.moves.size());
  return count;
}

Placement Plan::placement() const {
  Placement placement{shape.layer_count, shape.rank_count, shape.slots_per_rank, {}};
  placement.expert_of.reserve(at(shape.layer_count) * at(shape.slot_count()));
  for (const LayerPlan& layer : layers) {
    placement.expert_of.insert(placement.expert_of.end(), layer.physical_to_logical.begin(),
                               layer.physical_to_logical.end());
  }
  return placement;
}

absl::StatusOr<Plan> plan_experts(const ExpertShape& shape, const PlannerSettings& settings,
                                  const ExpertLoads& loads, const Placement& current) {
  RETURN_IF_ERROR(validate(shape));
  RETURN_IF_ERROR(validate(settings));
  RETURN_IF_ERROR(validate_loads(shape, loads));
  RETURN_IF_ERROR(validate_current(shape, current));
  Plan plan{shape, {}};
  plan.layers.reserve(at(shape.layer_count));
  for (int layer = 0; layer < shape.layer_count; ++layer) {
    plan.layers.push_back(plan_layer(shape, settings, layer, loads.layer(layer), current));
  }
  return plan;
}

double imbalance_of(std::span<const double> loads, std::span<const int> experts_of_slots,
                    int rank_count) {
  std::vector<int> copies(loads.size(), 0);
  for (const int expert : experts_of_slots) {
    if (expert != kEmptySlot) ++copies[at(expert)];
  }
  const std::size_t slots_per_rank = experts_of_slots.size() / at(rank_count);
  double sum = 0.0;
  double heaviest = 0.0;
  for (std::size_t first = 0; slots_per_rank > 0 && first < experts_of_slots.size();
       first += slots_per_rank) {
    double load = 0.0;
    for (const int expert : experts_of_slots.subspan(first, slots_per_rank)) {
      if (expert != kEmptySlot) load += loads[at(expert)] / copies[at(expert)];
    }
    sum += load;
    heaviest = std::max(heaviest, load);
  }
  return sum > 0.0 ? heaviest * rank_count / sum : 1.0;
}

int moved_slots(const Placement& before, const Placement& after) {
  CHECK(before.expert_of.size() == after.expert_of.size());
  int moved = 0;
  for (std::size_t i = 0; i < before.expert_of.size(); ++i) {
    moved += before.expert_of[i] == after.expert_of[i] ? 0 : 1;
  }
  return moved;
}

}  // namespace millrace::controller::placement
