#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/render_options.h"

namespace millrace::api::recipe {

/// What a prompt in thinking mode says first about how much to reason; may be empty.
/// kInvalidArgument for `low` in V4's first release, which has no such effort.
absl::StatusOr<std::string> effort_text(const Effort& effort, const RenderOptions& options);

}  // namespace millrace::api::recipe
