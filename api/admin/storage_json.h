#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "api/admin/storage.h"
#include "common/json.h"

namespace millrace::api::admin {

/// The storage part of the desired state, as a JSON value. For the codecs of this folder only.
Json desired_storage_json(const DesiredStorage& storage);
absl::StatusOr<DesiredStorage> read_desired_storage(const Json& value, std::string path);

}  // namespace millrace::api::admin
