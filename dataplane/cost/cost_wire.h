#pragma once

#include "absl/status/statusor.h"
#include "dataplane/cost/cost_model.h"

namespace millrace::proto::v1 {
class PrefillCost;
}

/// A cost model as workers and entrypoints tell it each other.
namespace millrace::dataplane::cost {

proto::v1::PrefillCost to_wire(const CostModel& model);

/// kInvalidArgument: those of check().
absl::StatusOr<CostModel> from_wire(const proto::v1::PrefillCost& wire);

}  // namespace millrace::dataplane::cost
