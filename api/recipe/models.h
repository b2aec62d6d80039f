#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "api/recipe/deployment.h"

namespace millrace::api::recipe {

/// Two families of clients ask for the same list.
enum class ModelsForm { kOpenAi, kAnthropic };

/// What lists say of the served model besides its names.
struct ModelFacts {
  std::int64_t created_seconds = 0;  ///< Unix time
  int context_tokens = 0;
};

/// GET /v1/models: the served model and its aliases, each as a model.
std::string models_body(const Deployment& deployment, const ModelFacts& facts, ModelsForm form);

/// GET /v1/models/{id}; `encoded_id` as it stands in the path. kNotFound for a name that this
/// deployment does not have.
absl::StatusOr<std::string> model_body(const Deployment& deployment, const ModelFacts& facts,
                                       ModelsForm form, std::string_view encoded_id);

}  // namespace millrace::api::recipe
