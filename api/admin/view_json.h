#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "api/admin/view.h"
#include "common/json.h"

namespace millrace::api::admin {

/// A prefill cost as a JSON value. For the codecs of this folder only.
Json prefill_cost_json(const PrefillCost& cost);
/// kInvalidArgument names the coefficient: not finite, negative, or all of them 0.
absl::StatusOr<PrefillCost> read_prefill_cost(const Json& value, std::string path);

}  // namespace millrace::api::admin
