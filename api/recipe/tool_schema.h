#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/fields.h"

namespace millrace::api::recipe {

/// What the protocols' ways to offer tools have in common.

inline constexpr std::size_t kMaxTools = 512;

/// `name` (1 to 128 ASCII letters, digits, underscores and hyphens) and `description`.
absl::Status read_tool_head(const Fields& function, Tool& tool);

/// The schema of a tool's arguments: the member `field` of `function`, whose text is `raw`. Absent
/// or empty it stays {}; otherwise its type must be object.
absl::Status read_schema(const Fields& function, std::string_view field, std::string_view raw,
                         Tool& tool);

absl::Status check_unique_names(const std::vector<Tool>& tools);

/// The choice of the tool that has this name; an error of `field` when there is none.
absl::StatusOr<ToolChoice> choose_tool(const std::vector<Tool>& tools,
                                       const std::optional<std::string>& name,
                                       std::string_view field);

}  // namespace millrace::api::recipe
