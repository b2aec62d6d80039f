#include "api/recipe/messages_history.h"

#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "api/recipe/json_text.h"
#include "api/recipe/request_error.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::size_t kMaxMessages = 16384;
constexpr std::size_t kMaxBlocks = 4096;
constexpr std::size_t kMaxNameBytes = 512;

/// Messages of errors begin with the path in the spelling of the protocol's own.
absl::Status problem(const std::string& path, std::string_view what,
                     std::string_view code = "invalid_value") {
  return field_error(path, str_cat(dotted(path), ": ", what), code);
}

absl::Status missing(const std::string& path) {
  return problem(path, "Field required", "missing_required_parameter");
}

absl::StatusOr<std::string> require_string(const Fields& block, std::string_view field) {
  ASSIGN_OR_RETURN(auto text, block.string(field));
  if (!text) return missing(block.path(field));
  return *std::move(text);
}

absl::StatusOr<std::string> require_name(const Fields& block, std::string_view field) {
  ASSIGN_OR_RETURN(std::string name, require_string(block, field));
  if (name.empty() || name.size() > kMaxNameBytes) {
    return problem(block.path(field), str_cat("must have 1 to ", kMaxNameBytes, " bytes"));
  }
  return name;
}

absl::StatusOr<Part> read_image(const Fields& block, ImageReader& images) {
  RETURN_IF_ERROR(block.require_object("source"));
  const Json* source = block.find("source");
  if (source == nullptr) return missing(block.path("source"));
  const Fields fields(*source, block.path("source"));
  ASSIGN_OR_RETURN(const std::string type, require_string(fields, "type"));
  if (type == "url") {
    ASSIGN_OR_RETURN(const std::string url, require_string(fields, "url"));
    return images.read_url(url, fields.path("url"));
  }
  if (type != "base64") {
    return problem(fields.path("type"), str_cat("must be base64 or url, is ", type),
                   "unsupported_content");
  }
  ASSIGN_OR_RETURN(const std::string media_type, require_string(fields, "media_type"));
  ASSIGN_OR_RETURN(const std::string data, require_string(fields, "data"));
  return images.read_base64(media_type, data, fields.path("data"));
}

/// A block that shows as text or an image; nullopt for other kinds.
absl::StatusOr<std::optional<Part>> read_visible(const Fields& block, const std::string& type,
                                                 ImageReader& images) {
  Part part;
  if (type == "text") {
    ASSIGN_OR_RETURN(part.text, require_string(block, "text"));
  } else if (type == "document") {
    part.text = "[Unsupported Document]";
  } else if (type == "tool_reference") {
    ASSIGN_OR_RETURN(part.text, require_string(block, "tool_name"));
  } else if (type == "image") {
    ASSIGN_OR_RETURN(part, read_image(block, images));
  } else {
    return std::optional<Part>();
  }
  return std::optional<Part>(std::move(part));
}

/// Calls `read(fields, type, index)` for every block of a list; a string is one text block.
template <typename Read>
absl::Status for_blocks(const Json& content, const std::string& where, Read read) {
  if (content.is_string()) {
    Json block = Json::object();
    block["type"] = "text";
    block["text"] = content;
    return read(Fields(block, where), "text", 0);
  }
  if (!content.is_array()) return problem(where, "must be a string or a list of blocks");
  if (content.size() > kMaxBlocks)
    return problem(where, str_cat("more than ", kMaxBlocks, " blocks"));
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string path = str_cat(where, "[", i, "]");
    if (!content[i].is_object()) return problem(path, "must be an object", "invalid_type");
    const Fields fields(content[i], path);
    ASSIGN_OR_RETURN(const std::string type, require_string(fields, "type"));
    RETURN_IF_ERROR(read(fields, type, i));
  }
  return absl::OkStatus();
}

absl::StatusOr<Message> read_result(const Fields& block, ImageReader& images) {
  Message message;
  message.role = Role::kTool;
  ASSIGN_OR_RETURN(message.tool_call_id, require_name(block, "tool_use_id"));
  const Json* content = block.find("content");
  if (content == nullptr) return message;
  RETURN_IF_ERROR(for_blocks(
      *content, block.path("content"),
      [&](const Fields& inner, const std::string& type, std::size_t) -> absl::Status {
        ASSIGN_OR_RETURN(auto part, read_visible(inner, type, images));
        message.parts.push_back(part ? *std::move(part)
                                     : Part{.text = str_cat("[Unsupported ", type, "]")});
        return absl::OkStatus();
      }));
  return message;
}

/// One user message as results, and then a message of the rest.
absl::StatusOr<std::vector<Message>> read_user(const Json& content, const std::string& where,
                                               ImageReader& images) {
  std::vector<Message> messages;
  Message rest;
  RETURN_IF_ERROR(for_blocks(
      content, where,
      [&](const Fields& block, const std::string& type, std::size_t) -> absl::Status {
        if (type == "tool_result") {
          ASSIGN_OR_RETURN(Message result, read_result(block, images));
          messages.push_back(std::move(result));
          return absl::OkStatus();
        }
        ASSIGN_OR_RETURN(auto part, read_visible(block, type, images));
        if (!part) {
          return problem(
              block.path("type"),
              str_cat("must be text, image, document, tool_result or tool_reference, is ", type),
              "unsupported_content");
        }
        rest.parts.push_back(*std::move(part));
        return absl::OkStatus();
      }));
  if (messages.empty() && rest.parts.empty()) return problem(where, "must not be empty");
  if (!rest.parts.empty()) messages.push_back(std::move(rest));
  return messages;
}

absl::StatusOr<ToolCall> read_call(const Fields& block, std::string_view raw_block) {
  ToolCall call;
  ASSIGN_OR_RETURN(call.id, require_name(block, "id"));
  ASSIGN_OR_RETURN(call.name, require_name(block, "name"));
  RETURN_IF_ERROR(block.require_object("input"));
  if (block.find("input") == nullptr) return missing(block.path("input"));
  call.arguments = std::string(raw_member(raw_block, "input"));
  return call;
}

absl::StatusOr<Message> read_assistant(const Json& content, std::string_view raw_content,
                                       const std::string& where) {
  Message message;
  message.role = Role::kAssistant;
  std::vector<std::string_view> raw_blocks;
  if (content.is_array()) {
    ASSIGN_OR_RETURN(raw_blocks, raw_elements(raw_content));
  }
  RETURN_IF_ERROR(for_blocks(
      content, where,
      [&](const Fields& block, const std::string& type, std::size_t index) -> absl::Status {
        if (type == "text") {
          ASSIGN_OR_RETURN(std::string text, require_string(block, "text"));
          message.parts.push_back({std::move(text)});
        } else if (type == "thinking") {
          ASSIGN_OR_RETURN(const std::string text, require_string(block, "thinking"));
          message.reasoning = message.reasoning ? str_cat(*message.reasoning, "\n\n", text) : text;
        } else if (type == "tool_use") {
          ASSIGN_OR_RETURN(ToolCall call, read_call(block, raw_blocks[index]));
          message.tool_calls.push_back(std::move(call));
        } else if (type != "redacted_thinking" && type != "server_tool_use" &&
                   type != "web_search_tool_result") {
          return problem(
              block.path("type"),
              str_cat("must be text, thinking, redacted_thinking or tool_use, is ", type),
              "unsupported_content");
        }
        return absl::OkStatus();
      }));
  return message;
}

/// A list of text blocks, or a string, as the parts of one message.
absl::StatusOr<std::vector<Part>> read_texts(const Json& content, const std::string& where) {
  std::vector<Part> parts;
  RETURN_IF_ERROR(
      for_blocks(content, where,
                 [&](const Fields& block, const std::string& type, std::size_t) -> absl::Status {
                   if (type != "text") {
                     return problem(block.path("type"), str_cat("must be text, is ", type));
                   }
                   ASSIGN_OR_RETURN(std::string text, require_string(block, "text"));
                   parts.push_back({std::move(text)});
                   return absl::OkStatus();
                 }));
  return parts;
}

absl::StatusOr<std::vector<Message>> read_system(const Fields& body) {
  std::vector<Message> messages;
  const Json* system = body.find("system");
  if (system == nullptr) return messages;
  Message message;
  message.role = Role::kSystem;
  ASSIGN_OR_RETURN(message.parts, read_texts(*system, "system"));
  if (!message.parts.empty()) messages.push_back(std::move(message));
  return messages;
}

/// A system message within the history: a reminder in the user's turn.
absl::StatusOr<Message> read_reminder(const Json& content, const std::string& where) {
  Message message;
  ASSIGN_OR_RETURN(message.parts, read_texts(content, where));
  if (message.parts.empty()) return problem(where, "must not be empty");
  message.parts.front().text.insert(0, "<system-reminder>\n");
  message.parts.back().text.append("\n</system-reminder>");
  return message;
}

/// Checks that calls and results belong together.
class Pairing {
 public:
  /// The results and texts that one message of the protocol brings.
  absl::Status answer(const std::vector<Message>& messages, const std::string& where) {
    std::set<std::string> open = std::exchange(open_, {});
    for (const Message& message : messages) {
      if (message.role != Role::kTool || open.erase(message.tool_call_id) > 0) continue;
      return problem(where, str_cat("unexpected `tool_use_id` found in `tool_result` blocks: ",
                                    message.tool_call_id,
                                    ". Each `tool_result` block must have a corresponding "
                                    "`tool_use` block in the previous message, and only one."));
    }
    open_ = std::move(open);
    return finish();
  }

  absl::Status call(const Message& message, const std::string& where) {
    RETURN_IF_ERROR(finish());
    caller_ = where;
    for (const ToolCall& call : message.tool_calls) {
      if (!open_.insert(call.id).second) {
        return problem(where, str_cat("two `tool_use` blocks have the id ", call.id));
      }
    }
    return absl::OkStatus();
  }

  absl::Status finish() const {
    if (open_.empty()) return absl::OkStatus();
    std::string ids;
    for (const std::string& id : open_) ids.append(ids.empty() ? "" : ", ").append(id);
    return problem(caller_, str_cat("`tool_use` ids were found without `tool_result` blocks "
                                    "immediately after: ",
                                    ids,
                                    ". Each `tool_use` block must have a corresponding "
                                    "`tool_result` block in the next message."));
  }

 private:
  std::string caller_;
  std::set<std::string> open_;
};

/// Appends what one message of the protocol stands for.
absl::Status append_message(const Json& value, std::string_view raw, const std::string& where,
                            Pairing& pairing, ImageReader& images, std::vector<Message>& messages) {
  if (!value.is_object()) return problem(where, "must be an object", "invalid_type");
  const Fields fields(value, where);
  ASSIGN_OR_RETURN(const std::string role, require_string(fields, "role"));
  const Json* content = fields.find("content");
  const std::string path = fields.path("content");
  if (content == nullptr) return missing(path);
  if (role == "assistant") {
    const std::string_view raw_content = raw_member(raw, "content");
    ASSIGN_OR_RETURN(Message message, read_assistant(*content, raw_content, path));
    RETURN_IF_ERROR(pairing.call(message, where));
    messages.push_back(std::move(message));
    return absl::OkStatus();
  }
  if (role != "user" && role != "system") {
    return problem(fields.path("role"), str_cat("must be user, assistant or system, is ", role));
  }
  std::vector<Message> added;
  if (role == "user") {
    ASSIGN_OR_RETURN(added, read_user(*content, path, images));
  } else {
    ASSIGN_OR_RETURN(Message reminder, read_reminder(*content, path));
    added.push_back(std::move(reminder));
  }
  RETURN_IF_ERROR(pairing.answer(added, where));
  std::move(added.begin(), added.end(), std::back_inserter(messages));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Message>> read_messages_history(const Fields& body,
                                                           std::string_view raw_body,
                                                           ImageReader& images) {
  const Json* list = body.find("messages");
  if (list == nullptr) return missing("messages");
  if (!list->is_array()) return problem("messages", "must be a list", "invalid_type");
  if (list->empty()) return problem("messages", "at least one message is required");
  if (list->size() > kMaxMessages) {
    return problem("messages", str_cat("more than ", kMaxMessages, " messages"));
  }
  ASSIGN_OR_RETURN(std::vector<Message> messages, read_system(body));
  ASSIGN_OR_RETURN(const auto raw, raw_elements(raw_member(raw_body, "messages")));
  Pairing pairing;
  for (std::size_t i = 0; i < list->size(); ++i) {
    RETURN_IF_ERROR(append_message((*list)[i], raw[i], str_cat("messages[", i, "]"), pairing,
                                   images, messages));
  }
  RETURN_IF_ERROR(pairing.finish());
  Message& last = messages.back();
  last.is_prefix = last.role == Role::kAssistant;
  return messages;
}

}  // namespace millrace::api::recipe
