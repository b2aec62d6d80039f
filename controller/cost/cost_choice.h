#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "dataplane/cost/cost_model.h"

/// Which of the costs that workers measure all entrypoints should count by. Pure.
namespace millrace::controller::cost {

/// The index of the typical one: the lower median by the predicted time of a reference chunk, 4,096
/// rows behind 8,192. Some worker has exactly this model, so its terms fit each other, as a mean of
/// terms need not. Equal times go to the earlier; nullopt of none.
std::optional<std::size_t> typical_cost(std::span<const dataplane::cost::CostModel> costs);

/// Whether `next` predicts a chunk so differently from `published` that it is worth a new version:
/// by more than 5 % at one of a few reference shapes, from a short prompt to the end of a long one.
/// Each new version makes entrypoints count anew, and measured costs tremble.
bool is_worth_publishing(const dataplane::cost::CostModel& published,
                         const dataplane::cost::CostModel& next);

}  // namespace millrace::controller::cost
