#include "api/recipe/tool_schema.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string>

#include "api/recipe/json_text.h"
#include "api/recipe/request_error.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::size_t kMaxToolNameBytes = 128;

bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxToolNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
         });
}

}  // namespace

absl::Status read_tool_head(const Fields& function, Tool& tool) {
  ASSIGN_OR_RETURN(const auto name, function.string("name"));
  if (!is_tool_name(name.value_or(""))) {
    return field_error(function.path("name"),
                       str_cat(dotted(function.path("name")),
                               ": expected 1-128 ASCII letters, digits, underscores or hyphens"));
  }
  tool.name = *name;
  ASSIGN_OR_RETURN(const auto description, function.string("description"));
  tool.description = description.value_or("");
  return absl::OkStatus();
}

absl::Status read_schema(const Fields& function, std::string_view field, std::string_view raw,
                         Tool& tool) {
  RETURN_IF_ERROR(function.require_object(field));
  const Json* schema = function.find(field);
  if (schema == nullptr || schema->empty()) return absl::OkStatus();
  const auto type = schema->find("type");
  if (type == schema->end() || *type != "object") {
    return field_error(function.path(field),
                       str_cat("`", function.path(field), ".type` must be \"object\""));
  }
  const auto properties = schema->find("properties");
  if (properties != schema->end() && properties->is_object()) {
    for (const auto& [name, value] : properties->items()) tool.properties.push_back(name);
  }
  ASSIGN_OR_RETURN(tool.parameters, python_json(raw_member(raw, field)));
  return absl::OkStatus();
}

absl::Status check_unique_names(const std::vector<Tool>& tools) {
  std::set<std::string> names;
  for (const Tool& tool : tools) {
    if (!names.insert(tool.full_name()).second) {
      return field_error("tools", "Tool names must be unique");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ToolChoice> choose_tool(const std::vector<Tool>& tools,
                                       const std::optional<std::string>& name,
                                       std::string_view field) {
  const bool is_offered = std::any_of(tools.begin(), tools.end(),
                                      [&](const Tool& tool) { return tool.full_name() == name; });
  if (!is_offered) {
    return field_error(
        field, str_cat("tool_choice: no tool named '", name.value_or(""), "' was specified"));
  }
  return ToolChoice{ToolChoice::Kind::kNamed, *name};
}

}  // namespace millrace::api::recipe
