#include "api/recipe/chat_request.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "api/recipe/request_error.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::int64_t kMaxTopLogprobs = 20;

absl::StatusOr<std::string> read_part(const Json& part, const std::string& where) {
  if (!part.is_object()) return field_error(where, str_cat("`", where, "` must be an object"));
  const Fields fields(part, where);
  ASSIGN_OR_RETURN(const auto type, fields.string("type"));
  if (type != "text") {
    return field_error(fields.path("type"),
                       str_cat("`", fields.path("type"), "` must be \"text\"",
                               type ? str_cat(", is \"", *type, "\"") : std::string()),
                       type ? "unsupported_content" : "missing_required_parameter");
  }
  ASSIGN_OR_RETURN(auto text, fields.string("text"));
  if (!text) {
    return field_error(fields.path("text"), str_cat("`", fields.path("text"), "` is required"),
                       "missing_required_parameter");
  }
  return *std::move(text);
}

/// A string, or a list of text parts; no parts at all when absent.
absl::StatusOr<std::vector<Part>> read_content(const Fields& message) {
  std::vector<Part> parts;
  const Json* content = message.find("content");
  if (content == nullptr) return parts;
  if (content->is_string()) {
    parts.push_back({content->get<std::string>()});
    return parts;
  }
  const std::string path = message.path("content");
  if (!content->is_array()) {
    return field_error(path, str_cat("`", path, "` must be a string or a list of parts"),
                       "invalid_type");
  }
  for (std::size_t i = 0; i < content->size(); ++i) {
    ASSIGN_OR_RETURN(std::string text, read_part((*content)[i], str_cat(path, "[", i, "]")));
    parts.push_back({std::move(text)});
  }
  return parts;
}

absl::StatusOr<Role> read_role(const Fields& message) {
  ASSIGN_OR_RETURN(const auto role, message.string("role"));
  const std::string path = message.path("role");
  if (!role) {
    return field_error(path, str_cat("`", path, "` is required"), "missing_required_parameter");
  }
  if (*role == "system" || *role == "developer") return Role::kSystem;
  if (*role == "user") return Role::kUser;
  if (*role == "assistant") return Role::kAssistant;
  if (*role == "latest_reminder") return Role::kLatestReminder;
  if (*role == "tool" || *role == "function") {
    return field_error(path,
                       "Messages with role 'tool' must be a response to a preceding message with "
                       "'tool_calls'");
  }
  return field_error(path, str_cat("`", path,
                                   "` must be system, developer, user, assistant or "
                                   "latest_reminder, is \"",
                                   *role, "\""));
}

absl::StatusOr<Message> read_message(const Json& value, const std::string& where) {
  if (!value.is_object()) {
    return field_error(where, str_cat("`", where, "` must be an object"), "invalid_type");
  }
  const Fields fields(value, where);
  Message message;
  ASSIGN_OR_RETURN(message.role, read_role(fields));
  RETURN_IF_ERROR(fields.refuse({"tool_calls", "function_call", "audio"}));
  ASSIGN_OR_RETURN(message.parts, read_content(fields));
  if (message.role == Role::kAssistant) {
    ASSIGN_OR_RETURN(message.reasoning, fields.string("reasoning_content"));
    ASSIGN_OR_RETURN(const auto prefix, fields.boolean("prefix"));
    if (prefix.value_or(false)) return unsupported_field(fields.path("prefix"));
  }
  if (message.parts.empty()) {
    return field_error(fields.path("content"),
                       str_cat("`", fields.path("content"), "` is required"),
                       "missing_required_parameter");
  }
  return message;
}

absl::StatusOr<std::vector<Message>> read_messages(const Fields& body) {
  const Json* list = body.find("messages");
  if (list == nullptr) {
    return field_error("messages", "`messages` is required", "missing_required_parameter");
  }
  if (!list->is_array()) {
    return field_error("messages", "`messages` must be a list", "invalid_type");
  }
  if (list->empty()) return field_error("messages", "Empty input messages");
  std::vector<Message> messages;
  messages.reserve(list->size());
  for (std::size_t i = 0; i < list->size(); ++i) {
    ASSIGN_OR_RETURN(Message message, read_message((*list)[i], str_cat("messages[", i, "]")));
    messages.push_back(std::move(message));
  }
  return messages;
}

struct EffortName {
  std::string_view name;
  Effort::Name value;
};
constexpr std::array kEfforts = {
    EffortName{"minimal", Effort::Name::kLow}, EffortName{"low", Effort::Name::kLow},
    EffortName{"medium", Effort::Name::kHigh}, EffortName{"high", Effort::Name::kHigh},
    EffortName{"xhigh", Effort::Name::kXhigh}, EffortName{"max", Effort::Name::kMax}};

/// For formats that have names only.
Effort::Name name_of(int exact) {
  if (exact <= 50) return Effort::Name::kLow;
  return exact < 100 ? Effort::Name::kHigh : Effort::Name::kMax;
}

/// `thinking` wins, then `reasoning_effort`, then the deployment's default.
absl::Status read_thinking(const Fields& body, Thinking default_thinking,
                           Conversation& conversation) {
  conversation.thinking = default_thinking;
  if (const Json* effort = body.find("reasoning_effort")) {
    const std::string text = effort->is_string() ? effort->get<std::string>() : std::string();
    const auto* named = std::find_if(kEfforts.begin(), kEfforts.end(),
                                     [&](const EffortName& entry) { return entry.name == text; });
    conversation.thinking = text == "none" ? Thinking::kOff : Thinking::kOn;
    if (named != kEfforts.end()) {
      conversation.effort.name = named->value;
    } else if (effort->is_number_integer() && *effort >= 1 && *effort <= 100) {
      conversation.effort = {name_of(effort->get<int>()), effort->get<int>()};
    } else if (text != "none") {
      return field_error("reasoning_effort",
                         "`reasoning_effort` must be none, minimal, low, medium, high, xhigh, max "
                         "or an integer from 1 to 100");
    }
  }
  if (const Json* thinking = body.find("thinking")) {
    RETURN_IF_ERROR(body.require_object("thinking"));
    ASSIGN_OR_RETURN(const auto type, Fields(*thinking, "thinking").string("type"));
    if (type != "enabled" && type != "disabled") {
      return field_error("thinking.type", "`thinking.type` must be enabled or disabled");
    }
    conversation.thinking = type == "enabled" ? Thinking::kOn : Thinking::kOff;
  }
  return absl::OkStatus();
}

/// What belongs to tool calls and structured output, which this server does not serve.
absl::Status refuse_tools_and_formats(const Fields& body) {
  const Json* tools = body.find("tools");
  if (tools != nullptr && tools->is_array() && tools->empty()) {
    // The API's own words: an empty list is an error there too, and clients know it as such.
    return field_error("tools",
                       "Invalid 'tools': empty array. Expected an array with minimum length 1, but "
                       "got an empty array instead.",
                       "empty_array");
  }
  if (tools != nullptr) return unsupported_field("tools");
  const Json* choice = body.find("tool_choice");
  if (choice != nullptr && *choice != "none" && *choice != "auto") {
    return unsupported_field("tool_choice");
  }
  if (const Json* format = body.find("response_format")) {
    RETURN_IF_ERROR(body.require_object("response_format"));
    ASSIGN_OR_RETURN(const auto type, Fields(*format, "response_format").string("type"));
    if (type != "text") return unsupported_field("response_format");
  }
  return body.refuse({"functions", "function_call", "audio", "web_search_options"});
}

absl::Status read_logprobs(const Fields& body, Sampling& sampling) {
  ASSIGN_OR_RETURN(const auto logprobs, body.boolean("logprobs"));
  ASSIGN_OR_RETURN(const auto top, body.integer("top_logprobs", 0, kMaxTopLogprobs));
  sampling.return_logprobs = logprobs.value_or(false);
  if (top && !sampling.return_logprobs) {
    return field_error("top_logprobs", "`top_logprobs` needs `logprobs` to be true");
  }
  sampling.top_logprobs = static_cast<std::uint32_t>(top.value_or(0));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatRequest> parse_chat_request(std::string_view body, std::string_view served_model,
                                               int vocab_size, Thinking default_thinking) {
  ASSIGN_OR_RETURN(const Json json, parse_body(body));
  const Fields fields(json, "");
  ChatRequest request;
  RETURN_IF_ERROR(check_model(fields, served_model));
  RETURN_IF_ERROR(refuse_tools_and_formats(fields));
  ASSIGN_OR_RETURN(request.conversation.messages, read_messages(fields));
  RETURN_IF_ERROR(read_thinking(fields, default_thinking, request.conversation));
  ASSIGN_OR_RETURN(request.sampling, read_sampling(fields, vocab_size));
  RETURN_IF_ERROR(read_logprobs(fields, request.sampling));
  ASSIGN_OR_RETURN(request.stream, read_stream_options(fields));
  ASSIGN_OR_RETURN([[maybe_unused]] const auto user, fields.string("user"));
  RETURN_IF_ERROR(fields.require_object("metadata"));
  return request;
}

}  // namespace millrace::api::recipe
