#include "api/recipe/chat_tools.h"

#include <string>
#include <utility>
#include <vector>

#include "api/recipe/json_mode.h"
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
  if (!value.is_object()) {
    return field_error(where, str_cat("`", where, "` must be an object"), "invalid_type");
  }
  const Fields outer(value, where);
  ASSIGN_OR_RETURN(const auto type, outer.string("type"));
  if (type != "function") {
    return field_error(outer.path("type"),
                       str_cat("`", outer.path("type"), "` must be \"function\""),
                       type ? "unsupported_value" : "missing_required_parameter");
  }
  RETURN_IF_ERROR(outer.require_object("function"));
  const Json* function = outer.find("function");
  if (function == nullptr) {
    return field_error(outer.path("function"),
                       str_cat("`", outer.path("function"), "` is required"),
                       "missing_required_parameter");
  }
  const Fields fields(*function, outer.path("function"));
  Tool tool;
  RETURN_IF_ERROR(read_tool_head(fields, tool));
  ASSIGN_OR_RETURN(const auto strict, fields.boolean("strict"));
  tool.is_strict = strict.value_or(false);
  const std::string_view raw_function = raw_member(raw, "function");
  RETURN_IF_ERROR(read_schema(fields, "parameters", raw_function, tool));
  ASSIGN_OR_RETURN(tool.as_given, python_json(raw_function));
  return tool;
}

absl::StatusOr<std::vector<Tool>> read_tools(const Fields& body, std::string_view raw_body) {
  std::vector<Tool> tools;
  const Json* list = body.find("tools");
  if (list == nullptr) return tools;
  if (!list->is_array()) return field_error("tools", "`tools` must be a list", "invalid_type");
  if (list->empty()) {
    // The API's own words: an empty list is an error there too, and clients know it as such.
    return field_error("tools",
                       "Invalid 'tools': empty array. Expected an array with minimum length 1, but "
                       "got an empty array instead.",
                       "empty_array");
  }
  if (list->size() > kMaxTools) {
    return field_error("tools", str_cat("`tools` may have at most ", kMaxTools, " tools"),
                       "array_above_max_length");
  }
  ASSIGN_OR_RETURN(const auto raw, raw_elements(raw_member(raw_body, "tools")));
  for (std::size_t i = 0; i < list->size(); ++i) {
    ASSIGN_OR_RETURN(Tool tool, read_tool((*list)[i], raw[i], i));
    tools.push_back(std::move(tool));
  }
  RETURN_IF_ERROR(check_unique_names(tools));
  return tools;
}

absl::StatusOr<ToolChoice> read_tool_choice(const Fields& body, const std::vector<Tool>& tools) {
  using Kind = ToolChoice::Kind;
  const Json* choice = body.find("tool_choice");
  if (choice == nullptr || *choice == "auto") return ToolChoice{Kind::kAuto, {}};
  if (*choice == "none") return ToolChoice{Kind::kNone, {}};
  const bool is_required = *choice == "required";
  if (!is_required && !choice->is_object()) {
    return field_error("tool_choice",
                       "`tool_choice` must be none, auto, required or an object that names a "
                       "function");
  }
  if (tools.empty()) {
    return field_error("tool_choice", "`tool_choice` may force a call only when `tools` are given");
  }
  if (is_required) return ToolChoice{Kind::kRequired, {}};
  const Fields fields(*choice, "tool_choice");
  ASSIGN_OR_RETURN(const auto type, fields.string("type"));
  RETURN_IF_ERROR(fields.require_object("function"));
  const Json* function = fields.find("function");
  if (type != "function" || function == nullptr) {
    return field_error("tool_choice.type",
                       "a `tool_choice` object must be {\"type\": \"function\", \"function\": "
                       "{\"name\": ...}}");
  }
  ASSIGN_OR_RETURN(const auto name, Fields(*function, "tool_choice.function").string("name"));
  return choose_tool(tools, name, "tool_choice");
}

absl::StatusOr<ResponseFormat> read_response_format(const Fields& body,
                                                    const std::vector<Message>& messages) {
  const Json* format = body.find("response_format");
  if (format == nullptr) return ResponseFormat::kText;
  RETURN_IF_ERROR(body.require_object("response_format"));
  ASSIGN_OR_RETURN(const auto type, Fields(*format, "response_format").string("type"));
  if (type == "text") return ResponseFormat::kText;
  if (type == "json_schema") return unsupported_field("response_format");
  if (type != "json_object") {
    return field_error(
        "response_format.type",
        "`response_format.type` must be text or json_object; regular expressions and grammars "
        "are not supported",
        type ? "invalid_value" : "missing_required_parameter");
  }
  if (!mentions_json(messages)) {
    return field_error("messages",
                       "Prompt must contain the word 'json' in some form to use "
                       "'response_format' of type 'json_object'.");
  }
  return ResponseFormat::kJsonObject;
}

}  // namespace

absl::Status read_chat_tools(const Fields& body, std::string_view raw_body,
                             Conversation& conversation, ParallelCalls& parallel_calls) {
  ASSIGN_OR_RETURN(conversation.tools, read_tools(body, raw_body));
  ASSIGN_OR_RETURN(conversation.tool_choice, read_tool_choice(body, conversation.tools));
  ASSIGN_OR_RETURN(const auto parallel, body.boolean("parallel_tool_calls"));
  parallel_calls = parallel.value_or(true) ? ParallelCalls::kAllowed : ParallelCalls::kOnlyOne;
  ASSIGN_OR_RETURN(conversation.response_format, read_response_format(body, conversation.messages));
  return absl::OkStatus();
}

}  // namespace millrace::api::recipe
