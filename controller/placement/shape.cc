#include "controller/placement/shape.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "common/check.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::controller::placement {
namespace {

absl::Status in_range(const char* name, int value) {
  if (value >= 1 && value <= kMaxCount) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat(name, " is ", value, "; it must be from 1 to ", kMaxCount));
}

absl::Status validate_redundant(int redundant_per_rank) {
  if (redundant_per_rank >= 0 && redundant_per_rank <= kMaxCount) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat("redundant_per_rank is ", redundant_per_rank, "; it must be from 0 to ", kMaxCount));
}

absl::Status too_few_slots(int rank_count, int slots, int expert_count) {
  return absl::FailedPreconditionError(
      str_cat(rank_count, " ranks of ", slots, " expert slots have ",
              static_cast<std::int64_t>(rank_count) * slots, " slots, but the ", expert_count,
              " experts need at least ", expert_count));
}

}  // namespace

absl::Status validate(const PlannerSettings& settings) {
  RETURN_IF_ERROR(validate_redundant(settings.redundant_per_rank));
  if (settings.window_steps < 1 || settings.interval_steps < settings.window_steps) {
    return absl::InvalidArgumentError(
        str_cat("window_steps is ", settings.window_steps, " and interval_steps ",
                settings.interval_steps, "; they must be 1 <= window_steps <= interval_steps"));
  }
  if (!std::isfinite(settings.balance_target) || settings.balance_target < 1.0) {
    return absl::InvalidArgumentError(
        str_cat("balance_target is ", settings.balance_target, "; it must be at least 1"));
  }
  if (!std::isfinite(settings.minimum_gain) || settings.minimum_gain < 0.0) {
    return absl::InvalidArgumentError(
        str_cat("minimum_gain is ", settings.minimum_gain, "; it must not be negative"));
  }
  return absl::OkStatus();
}

absl::Status validate(const ExpertShape& shape) {
  const std::pair<const char*, int> counts[] = {
      {"layer_count", shape.layer_count}, {"expert_count", shape.expert_count},
      {"rank_count", shape.rank_count},   {"slots_per_rank", shape.slots_per_rank},
      {"node_count", shape.node_count},   {"group_count", shape.group_count},
  };
  for (const auto& [name, value] : counts) {
    RETURN_IF_ERROR(in_range(name, value));
  }
  if (shape.expert_count % shape.group_count != 0) {
    return absl::InvalidArgumentError(str_cat("group_count is ", shape.group_count,
                                              "; it must divide the ", shape.expert_count,
                                              " experts"));
  }
  const std::int64_t slots = static_cast<std::int64_t>(shape.rank_count) * shape.slots_per_rank;
  if (slots < shape.expert_count) {
    return too_few_slots(shape.rank_count, shape.slots_per_rank, shape.expert_count);
  }
  if (slots > kMaxSlots) {
    return absl::InvalidArgumentError(str_cat(shape.rank_count, " ranks of ", shape.slots_per_rank,
                                              " slots are too many; there may be ", kMaxSlots,
                                              " slots"));
  }
  return absl::OkStatus();
}

bool is_counted(const PlannerSettings& settings, std::uint64_t step_index) {
  const auto interval = static_cast<std::uint64_t>(settings.interval_steps);
  const auto window = static_cast<std::uint64_t>(settings.window_steps);
  return step_index % interval >= interval - window;
}

bool is_due(const PlannerSettings& settings, std::uint64_t step_index) {
  return (step_index + 1) % static_cast<std::uint64_t>(settings.interval_steps) == 0;
}

absl::StatusOr<int> slots_per_rank(int expert_count, int rank_count, int redundant_per_rank,
                                   int max_slots_per_rank) {
  for (const auto& [name, value] :
       {std::pair("expert_count", expert_count), std::pair("rank_count", rank_count),
        std::pair("max_slots_per_rank", max_slots_per_rank)}) {
    RETURN_IF_ERROR(in_range(name, value));
  }
  RETURN_IF_ERROR(validate_redundant(redundant_per_rank));
  const int share = expert_count / rank_count + (expert_count % rank_count != 0 ? 1 : 0);
  if (share > max_slots_per_rank) {
    return too_few_slots(rank_count, max_slots_per_rank, expert_count);
  }
  return std::min(max_slots_per_rank, share + redundant_per_rank);
}

Placement identity_placement(const ExpertShape& shape) {
  Placement placement{shape.layer_count, shape.rank_count, shape.slots_per_rank, {}};
  placement.expert_of.reserve(static_cast<std::size_t>(shape.layer_count) *
                              static_cast<std::size_t>(shape.slot_count()));
  for (int layer = 0; layer < shape.layer_count; ++layer) {
    for (int slot = 0; slot < shape.slot_count(); ++slot) {
      placement.expert_of.push_back(slot % shape.expert_count);
    }
  }
  return placement;
}

Placement with_ranks(const Placement& placement, std::span<const int> kept_ranks) {
  Placement kept{
      placement.layer_count, static_cast<int>(kept_ranks.size()), placement.slots_per_rank, {}};
  kept.expert_of.reserve(static_cast<std::size_t>(kept.layer_count) *
                         static_cast<std::size_t>(kept.slot_count()));
  for (int layer = 0; layer < placement.layer_count; ++layer) {
    const std::span<const int> experts = placement.layer(layer);
    for (const int rank : kept_ranks) {
      CHECK(rank >= -1 && rank < placement.rank_count);
      for (int place = 0; place < placement.slots_per_rank; ++place) {
        const int slot = rank * placement.slots_per_rank + place;
        kept.expert_of.push_back(rank < 0 ? kEmptySlot : experts[static_cast<std::size_t>(slot)]);
      }
    }
  }
  return kept;
}

}  // namespace millrace::controller::placement
