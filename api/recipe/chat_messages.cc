#include "api/recipe/chat_messages.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "api/recipe/request_error.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::size_t kMaxMessages = 16384;
constexpr std::size_t kMaxParts = 4096;
constexpr std::size_t kMaxCalls = 256;
constexpr std::size_t kMaxNameBytes = 512;

absl::Status missing(const std::string& path) {
  return field_error(path, str_cat("`", path, "` is required"), "missing_required_parameter");
}

absl::Status too_many(const std::string& path, std::size_t limit, std::string_view what) {
  return field_error(path, str_cat("`", path, "` may have at most ", limit, " ", what),
                     "array_above_max_length");
}

absl::StatusOr<std::string> require_string(const Fields& object, std::string_view field) {
  ASSIGN_OR_RETURN(auto text, object.string(field));
  if (!text) return missing(object.path(field));
  return *std::move(text);
}

/// A required, non-empty, short string.
absl::StatusOr<std::string> read_name(const Fields& object, std::string_view field) {
  ASSIGN_OR_RETURN(std::string name, require_string(object, field));
  if (name.empty() || name.size() > kMaxNameBytes) {
    const std::string path = object.path(field);
    return field_error(path, str_cat("`", path, "` must have 1 to ", kMaxNameBytes, " bytes"));
  }
  return name;
}

absl::StatusOr<Part> read_image(const Fields& part, Role role, ImageReader& images) {
  RETURN_IF_ERROR(part.require_object("image_url"));
  const Json* image = part.find("image_url");
  if (image == nullptr) return missing(part.path("image_url"));
  if (role != Role::kUser && role != Role::kTool) {
    return field_error(part.path("type"), "image_url parts are allowed in user and tool messages",
                       "unsupported_content");
  }
  const Fields fields(*image, part.path("image_url"));
  ASSIGN_OR_RETURN(const auto detail, fields.string("detail"));
  if (detail && *detail != "auto" && *detail != "low" && *detail != "high") {
    return field_error(fields.path("detail"),
                       str_cat("`", fields.path("detail"), "` must be auto, low or high"));
  }
  ASSIGN_OR_RETURN(const auto url, fields.string("url"));
  if (!url) return missing(fields.path("url"));
  return images.read_url(*url, fields.path("url"));
}

/// Documents are not read; the model is told that there was one.
absl::StatusOr<Part> read_file(const Fields& part) {
  RETURN_IF_ERROR(part.require_object("file"));
  const Json* file = part.find("file");
  if (file == nullptr) return missing(part.path("file"));
  const Fields fields(*file, part.path("file"));
  RETURN_IF_ERROR(fields.refuse({"file_id"}));
  ASSIGN_OR_RETURN(const auto data, fields.string("file_data"));
  if (!data) return missing(fields.path("file_data"));
  return Part{.text = "[Unsupported Document]"};
}

absl::StatusOr<Part> read_part(const Json& part, const std::string& where, Role role,
                               ImageReader& images) {
  if (!part.is_object()) return field_error(where, str_cat("`", where, "` must be an object"));
  const Fields fields(part, where);
  ASSIGN_OR_RETURN(const std::string type, require_string(fields, "type"));
  if (type == "image_url") return read_image(fields, role, images);
  if (type == "file") return read_file(fields);
  if (type != "text") {
    return field_error(
        fields.path("type"),
        str_cat("`", fields.path("type"), "` must be text, image_url or file, is \"", type, "\""),
        "unsupported_content");
  }
  ASSIGN_OR_RETURN(auto text, fields.string("text"));
  if (!text) return missing(fields.path("text"));
  return Part{.text = *std::move(text)};
}

/// A string, or a list of parts; no parts at all when absent.
absl::StatusOr<std::vector<Part>> read_content(const Fields& message, Role role,
                                               ImageReader& images) {
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
  if (content->size() > kMaxParts) return too_many(path, kMaxParts, "parts");
  for (std::size_t i = 0; i < content->size(); ++i) {
    ASSIGN_OR_RETURN(Part part, read_part((*content)[i], str_cat(path, "[", i, "]"), role, images));
    parts.push_back(std::move(part));
  }
  return parts;
}

absl::StatusOr<Role> read_role(const Fields& message) {
  ASSIGN_OR_RETURN(const auto role, message.string("role"));
  const std::string path = message.path("role");
  if (!role) return missing(path);
  if (*role == "system" || *role == "developer") return Role::kSystem;
  if (*role == "user") return Role::kUser;
  if (*role == "assistant") return Role::kAssistant;
  if (*role == "tool") return Role::kTool;
  if (*role == "latest_reminder") return Role::kLatestReminder;
  return field_error(path, str_cat("`", path,
                                   "` must be system, developer, user, assistant, tool or "
                                   "latest_reminder, is \"",
                                   *role, "\""));
}

absl::StatusOr<ToolCall> read_call(const Json& value, const std::string& where) {
  if (!value.is_object()) {
    return field_error(where, str_cat("`", where, "` must be an object"), "invalid_type");
  }
  const Fields fields(value, where);
  ToolCall call;
  ASSIGN_OR_RETURN(call.id, read_name(fields, "id"));
  ASSIGN_OR_RETURN(const auto type, fields.string("type"));
  if (type.value_or("function") != "function") {
    return field_error(fields.path("type"),
                       str_cat("`", fields.path("type"), "` must be \"function\""));
  }
  RETURN_IF_ERROR(fields.require_object("function"));
  const Json* function = fields.find("function");
  if (function == nullptr) return missing(fields.path("function"));
  const Fields inner(*function, fields.path("function"));
  ASSIGN_OR_RETURN(call.name, read_name(inner, "name"));
  ASSIGN_OR_RETURN(auto arguments, inner.string("arguments"));
  if (!arguments) return missing(inner.path("arguments"));
  call.arguments = *std::move(arguments);
  return call;
}

absl::StatusOr<std::vector<ToolCall>> read_calls(const Fields& message) {
  std::vector<ToolCall> calls;
  const Json* list = message.find("tool_calls");
  if (list == nullptr) return calls;
  const std::string path = message.path("tool_calls");
  if (!list->is_array()) {
    return field_error(path, str_cat("`", path, "` must be a list"), "invalid_type");
  }
  if (list->empty()) {
    return field_error(path, str_cat("`", path, "` must have at least one call"), "empty_array");
  }
  if (list->size() > kMaxCalls) return too_many(path, kMaxCalls, "calls");
  for (std::size_t i = 0; i < list->size(); ++i) {
    ASSIGN_OR_RETURN(ToolCall call, read_call((*list)[i], str_cat(path, "[", i, "]")));
    calls.push_back(std::move(call));
  }
  return calls;
}

absl::StatusOr<Message> read_message(const Json& value, const std::string& where,
                                     ImageReader& images) {
  if (!value.is_object()) {
    return field_error(where, str_cat("`", where, "` must be an object"), "invalid_type");
  }
  const Fields fields(value, where);
  Message message;
  ASSIGN_OR_RETURN(message.role, read_role(fields));
  RETURN_IF_ERROR(fields.refuse({"function_call", "audio"}));
  ASSIGN_OR_RETURN(message.parts, read_content(fields, message.role, images));
  if (message.role == Role::kAssistant) {
    ASSIGN_OR_RETURN(message.reasoning, fields.string("reasoning_content"));
    ASSIGN_OR_RETURN(message.tool_calls, read_calls(fields));
    ASSIGN_OR_RETURN(const auto prefix, fields.boolean("prefix"));
    message.is_prefix = prefix.value_or(false);
  } else if (message.role == Role::kTool) {
    ASSIGN_OR_RETURN(message.tool_call_id, read_name(fields, "tool_call_id"));
  }
  const bool may_lack_content =
      !message.tool_calls.empty() || (message.is_prefix && message.reasoning.has_value());
  if (message.parts.empty() && !may_lack_content) return missing(fields.path("content"));
  return message;
}

/// Checks that calls and results belong together.
class Pairing {
 public:
  absl::Status add(const Message& message, const std::string& where) {
    if (message.role == Role::kTool) return answer(message.tool_call_id, where);
    RETURN_IF_ERROR(finish());
    known_.clear();
    if (message.tool_calls.empty()) return absl::OkStatus();
    caller_ = where;
    for (const ToolCall& call : message.tool_calls) {
      if (!known_.insert(call.id).second) {
        return field_error(where + ".tool_calls",
                           str_cat("two calls of `", where, "` have the id \"", call.id, "\""));
      }
    }
    open_ = known_;
    return absl::OkStatus();
  }

  absl::Status finish() const {
    if (open_.empty()) return absl::OkStatus();
    return field_error(caller_ + ".tool_calls",
                       "An assistant message with 'tool_calls' must be followed by tool messages "
                       "responding to each 'tool_call_id'. (insufficient tool messages following "
                       "tool_calls message)");
  }

 private:
  absl::Status answer(const std::string& id, const std::string& where) {
    if (open_.erase(id) > 0) return absl::OkStatus();
    if (known_.contains(id)) {
      return field_error(where + ".tool_call_id",
                         str_cat("the call \"", id, "\" is answered twice"));
    }
    return field_error(where + ".role",
                       "Messages with role 'tool' must be a response to a preceding message with "
                       "'tool_calls'");
  }

  std::string caller_;
  std::set<std::string> known_;  // calls of the last assistant message
  std::set<std::string> open_;   // those without an answer
};

}  // namespace

absl::StatusOr<std::vector<Message>> read_chat_messages(const Fields& body, ImageReader& images) {
  const Json* list = body.find("messages");
  if (list == nullptr) return missing("messages");
  if (!list->is_array()) {
    return field_error("messages", "`messages` must be a list", "invalid_type");
  }
  if (list->empty()) return field_error("messages", "Empty input messages");
  if (list->size() > kMaxMessages) return too_many("messages", kMaxMessages, "messages");
  std::vector<Message> messages;
  messages.reserve(list->size());
  Pairing pairing;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string where = str_cat("messages[", i, "]");
    ASSIGN_OR_RETURN(Message message, read_message((*list)[i], where, images));
    if (message.is_prefix && i + 1 < list->size()) {
      return field_error(where + ".prefix", "only the last message may be a prefix");
    }
    RETURN_IF_ERROR(pairing.add(message, where));
    messages.push_back(std::move(message));
  }
  RETURN_IF_ERROR(pairing.finish());
  return messages;
}

}  // namespace millrace::api::recipe
