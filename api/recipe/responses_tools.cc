#include "api/recipe/responses_tools.h"

#include <algorithm>
#include <array>
#include <set>
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

/// How a tool that takes text is shown to the model.
constexpr std::string_view kTextSchema =
    R"({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]})";

/// The custom tool that models know by heart: the grammar that clients send along tells them
/// nothing new, so that it may stay unenforced.
constexpr std::string_view kPatchTool = "apply_patch";

/// Tools that the hosted API runs itself. They are not offered to the model, and a choice of one
/// falls with it: agents send them whatever the server.
constexpr std::array<std::string_view, 13> kHostedTools = {
    "web_search",         "web_search_2025_08_26",
    "web_search_preview", "web_search_preview_2025_03_11",
    "file_search",        "code_interpreter",
    "computer",           "computer_use_preview",
    "image_generation",   "mcp",
    "local_shell",        "shell",
    "tool_search"};

bool is_hosted(std::string_view type) {
  return std::find(kHostedTools.begin(), kHostedTools.end(), type) != kHostedTools.end();
}

absl::Status missing(const std::string& path) {
  return field_error(path, str_cat("`", path, "` is required"), "missing_required_parameter");
}

/// Where a tool stands: in the list of the body, or in a namespace's.
enum class Place { kBody, kNamespace };

class ToolReader {
 public:
  explicit ToolReader(ResponsesRequest& request) : request_(request) {}

  absl::Status read(const Json& list, std::string_view raw_list, const std::string& where,
                    Place place) {
    if (!list.is_array()) {
      return field_error(where, str_cat("`", where, "` must be a list"), "invalid_type");
    }
    if (list.size() > kMaxTools) return too_many(where);
    ASSIGN_OR_RETURN(const auto raw, raw_elements(raw_list));
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string path = str_cat(where, "[", i, "]");
      if (!list[i].is_object()) {
        return field_error(path, str_cat("`", path, "` must be an object"), "invalid_type");
      }
      RETURN_IF_ERROR(read_one(Fields(list[i], path), raw[i], place));
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status too_many(const std::string& where) {
    return field_error(where, str_cat("`", where, "` may have at most ", kMaxTools, " tools"),
                       "array_above_max_length");
  }

  absl::Status read_one(const Fields& fields, std::string_view raw, Place place) {
    ASSIGN_OR_RETURN(const auto type, fields.string("type"));
    if (!type) return missing(fields.path("type"));
    if (type == "function") return read_function(fields, raw);
    if (type == "custom" && place == Place::kBody) return read_custom(fields);
    if (type == "namespace" && place == Place::kBody) return read_namespace(fields, raw);
    if (is_hosted(*type)) return absl::OkStatus();
    return field_error(fields.path("type"),
                       str_cat("`", fields.path("type"), "` must be ",
                               place == Place::kBody ? "function, custom, namespace" : "function",
                               " or a tool of the hosted API (web_search and others, which are "
                               "left out), is \"",
                               *type, "\""),
                       "unsupported_value");
  }

  absl::Status read_function(const Fields& fields, std::string_view raw) {
    Tool tool;
    RETURN_IF_ERROR(read_tool_head(fields, tool));
    ASSIGN_OR_RETURN(const auto strict, fields.boolean("strict"));
    tool.is_strict = strict.value_or(false);
    RETURN_IF_ERROR(read_schema(fields, "parameters", raw, tool));
    tool.name_space = name_space_;
    tool.namespace_description = namespace_description_;
    return add(std::move(tool));
  }

  absl::Status read_custom(const Fields& fields) {
    Tool tool;
    RETURN_IF_ERROR(read_tool_head(fields, tool));
    RETURN_IF_ERROR(fields.require_object("format"));
    if (const Json* format = fields.find("format")) {
      const Fields inner(*format, fields.path("format"));
      ASSIGN_OR_RETURN(const auto type, inner.string("type"));
      if (type == "grammar" && tool.name != kPatchTool) {
        return field_error(
            fields.path("format"),
            str_cat("`", fields.path("format"), "`: grammars are not enforced by this server yet"),
            "unsupported_value");
      }
      if (type != "text" && type != "grammar") {
        return field_error(inner.path("type"),
                           str_cat("`", inner.path("type"), "` must be text or grammar"));
      }
    }
    tool.parameters = kTextSchema;
    tool.properties = {"input"};
    request_.custom_tools.insert(tool.name);
    return add(std::move(tool));
  }

  absl::Status read_namespace(const Fields& fields, std::string_view raw) {
    Tool head;
    RETURN_IF_ERROR(read_tool_head(fields, head));
    name_space_ = std::move(head.name);
    namespace_description_ = std::move(head.description);
    const Json* tools = fields.find("tools");
    if (tools == nullptr) return missing(fields.path("tools"));
    RETURN_IF_ERROR(
        read(*tools, raw_member(raw, "tools"), fields.path("tools"), Place::kNamespace));
    name_space_.clear();
    namespace_description_.clear();
    return absl::OkStatus();
  }

  absl::Status add(Tool tool) {
    if (request_.conversation.tools.size() == kMaxTools) return too_many("tools");
    request_.conversation.tools.push_back(std::move(tool));
    return absl::OkStatus();
  }

  ResponsesRequest& request_;
  std::string name_space_;  // of the tools that are being read
  std::string namespace_description_;
};

/// The full name in an object that names a tool; empty for a tool of the hosted API.
absl::StatusOr<std::string> read_chosen_name(const Fields& choice) {
  ASSIGN_OR_RETURN(const auto type, choice.string("type"));
  if (type && is_hosted(*type)) return std::string();
  if (type != "function" && type != "custom") {
    return field_error(choice.path("type"),
                       str_cat("`", choice.path("type"),
                               "` must be function, custom, allowed_tools or a tool of the hosted "
                               "API"));
  }
  ASSIGN_OR_RETURN(const auto name, choice.string("name"));
  if (!name || name->empty()) return missing(choice.path("name"));
  ASSIGN_OR_RETURN(const auto name_space, choice.string("namespace"));
  return name_space && !name_space->empty() ? str_cat(*name_space, "::", *name) : *name;
}

/// Leaves only the allowed tools, and with `mode` required the model must call one of them.
absl::Status read_allowed_tools(const Fields& choice, Conversation& conversation) {
  ASSIGN_OR_RETURN(const auto mode, choice.string("mode"));
  if (mode != "auto" && mode != "required") {
    return field_error("tool_choice.mode", "`tool_choice.mode` must be auto or required");
  }
  const Json* list = choice.find("tools");
  if (list == nullptr || !list->is_array() || list->empty() || list->size() > kMaxTools) {
    return field_error("tool_choice.tools",
                       str_cat("`tool_choice.tools` must be a list of 1 to ", kMaxTools, " tools"));
  }
  std::set<std::string> allowed;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string path = str_cat("tool_choice.tools[", i, "]");
    if (!(*list)[i].is_object()) {
      return field_error(path, str_cat("`", path, "` must be an object"), "invalid_type");
    }
    ASSIGN_OR_RETURN(const std::string name, read_chosen_name(Fields((*list)[i], path)));
    if (name.empty()) continue;
    RETURN_IF_ERROR(choose_tool(conversation.tools, name, path).status());
    allowed.insert(name);
  }
  std::erase_if(conversation.tools,
                [&](const Tool& tool) { return !allowed.contains(tool.full_name()); });
  const bool is_forced = mode == "required" && !conversation.tools.empty();
  if (is_forced) conversation.tool_choice.kind = ToolChoice::Kind::kRequired;
  return absl::OkStatus();
}

absl::Status read_choice(const Fields& body, Conversation& conversation) {
  using Kind = ToolChoice::Kind;
  const Json* choice = body.find("tool_choice");
  if (choice == nullptr || *choice == "auto") return absl::OkStatus();
  if (*choice == "none") {
    conversation.tool_choice.kind = Kind::kNone;
    return absl::OkStatus();
  }
  if (*choice == "required") {
    if (conversation.tools.empty()) {
      return field_error("tool_choice",
                         "`tool_choice` may force a call only when `tools` are given");
    }
    conversation.tool_choice.kind = Kind::kRequired;
    return absl::OkStatus();
  }
  if (!choice->is_object()) {
    return field_error("tool_choice",
                       "`tool_choice` must be none, auto, required or an object that names tools");
  }
  const Fields fields(*choice, "tool_choice");
  if (fields.find("type") != nullptr && *fields.find("type") == "allowed_tools") {
    return read_allowed_tools(fields, conversation);
  }
  ASSIGN_OR_RETURN(const std::string name, read_chosen_name(fields));
  if (name.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(conversation.tool_choice, choose_tool(conversation.tools, name, "tool_choice"));
  return absl::OkStatus();
}

}  // namespace

absl::Status read_responses_tools(const Fields& body, std::string_view raw_body,
                                  ResponsesRequest& request) {
  if (const Json* list = body.find("tools")) {
    ToolReader reader(request);
    RETURN_IF_ERROR(reader.read(*list, raw_member(raw_body, "tools"), "tools", Place::kBody));
    RETURN_IF_ERROR(check_unique_names(request.conversation.tools));
  }
  RETURN_IF_ERROR(read_choice(body, request.conversation));
  ASSIGN_OR_RETURN(const auto parallel, body.boolean("parallel_tool_calls"));
  request.parallel_calls =
      parallel.value_or(true) ? ParallelCalls::kAllowed : ParallelCalls::kOnlyOne;
  return absl::OkStatus();
}

}  // namespace millrace::api::recipe
