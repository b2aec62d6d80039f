#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "api/admin/view.h"
#include "common/json.h"

/// Parts of several messages about routing. For the codecs of this folder only.
namespace millrace::api::admin {

class ObjectReader;

/// Reads the member "bucket" if it is there; only what does prefill may have one.
void read_bucket(ObjectReader& reader, bool is_prefill, int& out);

/// A prefill cost as a JSON value.
Json prefill_cost_json(const dataplane::cost::CostModel& cost);
/// kInvalidArgument names the coefficient: not finite, negative, or all of them 0.
absl::StatusOr<dataplane::cost::CostModel> read_prefill_cost(const Json& value, std::string path);

}  // namespace millrace::api::admin
