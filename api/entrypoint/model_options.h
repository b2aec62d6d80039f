#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "api/recipe/settings.h"

namespace millrace::api::entrypoint {

/// How one model is served, where that is a matter of the model.
struct ModelOptions {
  std::vector<std::string> aliases;  ///< further names that requests may use for it
  recipe::Settings settings;
};

/// Reads `serving.json` of a model's folder: an object with the names of settings
/// (recipe/settings.h) and their values, and `aliases`, a list of names. Without such a file
/// everything is as by default. kInvalidArgument names the file, the member and what is allowed.
absl::StatusOr<ModelOptions> read_model_options(const std::string& folder);

}  // namespace millrace::api::entrypoint
