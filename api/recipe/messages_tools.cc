#include "api/recipe/messages_tools.h"

#include <string>
#include <utility>
#include <vector>

#include "api/recipe/json_text.h"
#include "api/recipe/request_error.h"
#include "api/recipe/tool_schema.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

absl::StatusOr<Tool> read_tool(const Json& value, std::string_view raw, std::size_t index) {
  const std::string where = str_cat("tools[", index, "]");
  if (!value.is_object()) return field_error(where, str_cat("`", where, "` must be an object"));
  const Fields fields(value, where);
  ASSIGN_OR_RETURN(const auto type, fields.string("type"));
  if (type.value_or("custom") != "custom") {
    return field_error(fields.path("type"),
                       str_cat("tools.", index, ": server tools are not supported"));
  }
  Tool tool;
  RETURN_IF_ERROR(read_tool_head(fields, tool));
  if (fields.find("input_schema") == nullptr) {
    return field_error(fields.path("input_schema"),
                       str_cat("tools.", index, ".input_schema: Field required"),
                       "missing_required_parameter");
  }
  RETURN_IF_ERROR(read_schema(fields, "input_schema", raw, tool));
  return tool;
}

absl::Status read_choice(const Fields& body, Conversation& conversation,
                         ParallelCalls& parallel_calls) {
  using Kind = ToolChoice::Kind;
  RETURN_IF_ERROR(body.require_object("tool_choice"));
  const Json* choice = body.find("tool_choice");
  if (choice == nullptr) return absl::OkStatus();
  const Fields fields(*choice, "tool_choice");
  ASSIGN_OR_RETURN(const auto only_one, fields.boolean("disable_parallel_tool_use"));
  if (only_one.value_or(false)) parallel_calls = ParallelCalls::kOnlyOne;
  ASSIGN_OR_RETURN(const auto type, fields.string("type"));
  if (type == "auto") return absl::OkStatus();
  if (type == "none") {
    conversation.tool_choice.kind = Kind::kNone;
    return absl::OkStatus();
  }
  if (type != "any" && type != "tool") {
    return field_error("tool_choice.type", "tool_choice.type: must be auto, any, tool or none");
  }
  if (conversation.tools.empty()) {
    return field_error("tool_choice", "tool_choice: may force a call only when tools are given");
  }
  if (type == "any") {
    conversation.tool_choice.kind = Kind::kRequired;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const auto name, fields.string("name"));
  ASSIGN_OR_RETURN(conversation.tool_choice,
                   choose_tool(conversation.tools, name, "tool_choice.name"));
  return absl::OkStatus();
}

}  // namespace

absl::Status read_messages_tools(const Fields& body, std::string_view raw_body,
                                 Conversation& conversation, ParallelCalls& parallel_calls) {
  if (const Json* list = body.find("tools")) {
    if (!list->is_array()) return field_error("tools", "tools: must be a list", "invalid_type");
    if (list->size() > kMaxTools) {
      return field_error("tools", str_cat("tools: at most ", kMaxTools, " are allowed"));
    }
    ASSIGN_OR_RETURN(const auto raw, raw_elements(raw_member(raw_body, "tools")));
    for (std::size_t i = 0; i < list->size(); ++i) {
      ASSIGN_OR_RETURN(Tool tool, read_tool((*list)[i], raw[i], i));
      conversation.tools.push_back(std::move(tool));
    }
    RETURN_IF_ERROR(check_unique_names(conversation.tools));
  }
  return read_choice(body, conversation, parallel_calls);
}

}  // namespace millrace::api::recipe
