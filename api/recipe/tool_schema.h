#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "api/recipe/conversation.h"
#include "api/recipe/fields.h"

namespace millrace::api::recipe {

/// What the protocols' ways to offer tools have in common.

inline constexpr std::size_t kMaxTools = 512;

/// 1 to 128 ASCII letters, digits, underscores and hyphens.
bool is_tool_name(std::string_view name);

/// The schema of a tool's arguments: the member `field` of `function`, whose text is `raw`. Absent
/// or empty it stays {}; otherwise its type must be object.
absl::Status read_schema(const Fields& function, std::string_view field, std::string_view raw,
                         Tool& tool);

absl::Status check_unique_names(const std::vector<Tool>& tools);

}  // namespace millrace::api::recipe
