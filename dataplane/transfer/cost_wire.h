#pragma once

#include "absl/status/statusor.h"
#include "dataplane/cost/cost_model.h"

namespace millrace::proto::v1 {
class PrefillCost;
}

/// A cost model as workers and entrypoints tell it each other.
namespace millrace::dataplane::transfer {

proto::v1::PrefillCost to_wire(const cost::CostModel& model);

/// kInvalidArgument: those of cost::check().
absl::StatusOr<cost::CostModel> from_wire(const proto::v1::PrefillCost& wire);

}  // namespace millrace::dataplane::transfer
