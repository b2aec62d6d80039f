#include "api/recipe/responses_input.h"

#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "api/recipe/fields.h"
#include "api/recipe/json_text.h"
#include "api/recipe/request_error.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::size_t kMaxParts = 4096;
constexpr std::size_t kMaxNameBytes = 512;
constexpr std::string_view kSeal = "millrace-reasoning-1.";

absl::Status missing(const std::string& path) {
  return field_error(path, str_cat("`", path, "` is required"), "missing_required_parameter");
}

absl::StatusOr<std::string> require_string(const Fields& item, std::string_view field) {
  ASSIGN_OR_RETURN(auto text, item.string(field));
  if (!text) return missing(item.path(field));
  return *std::move(text);
}

absl::StatusOr<std::string> require_name(const Fields& item, std::string_view field) {
  ASSIGN_OR_RETURN(std::string name, require_string(item, field));
  if (name.empty() || name.size() > kMaxNameBytes) {
    return field_error(item.path(field), str_cat("`", item.path(field), "` must have 1 to ",
                                                 kMaxNameBytes, " bytes"));
  }
  return name;
}

absl::StatusOr<Part> read_image(const Fields& part, ImageReader& images) {
  RETURN_IF_ERROR(part.refuse({"file_id"}));
  ASSIGN_OR_RETURN(const auto detail, part.string("detail"));
  if (detail && *detail != "auto" && *detail != "low" && *detail != "high") {
    return field_error(part.path("detail"),
                       str_cat("`", part.path("detail"), "` must be auto, low or high"));
  }
  ASSIGN_OR_RETURN(const std::string url, require_string(part, "image_url"));
  return images.read_url(url, part.path("image_url"));
}

absl::StatusOr<Part> read_part(const Fields& part, ImageReader& images) {
  ASSIGN_OR_RETURN(const std::string type, require_string(part, "type"));
  if (type == "input_image") return read_image(part, images);
  Part result;
  if (type == "input_text" || type == "output_text" || type == "text" || type == "summary_text" ||
      type == "reasoning_text") {
    ASSIGN_OR_RETURN(result.text, require_string(part, "text"));
    return result;
  }
  if (type == "refusal") {
    ASSIGN_OR_RETURN(result.text, require_string(part, "refusal"));
    return result;
  }
  if (type == "input_file") {
    RETURN_IF_ERROR(part.refuse({"file_id"}));
    result.text = "[Unsupported Document]";
    return result;
  }
  return field_error(part.path("type"),
                     str_cat("`", part.path("type"),
                             "` must be input_text, output_text, input_file, input_image or "
                             "refusal, is \"",
                             type, "\""),
                     "unsupported_content");
}

/// A string or a list of parts; nothing when absent.
absl::StatusOr<std::vector<Part>> read_parts(const Fields& item, std::string_view field,
                                             ImageReader& images) {
  std::vector<Part> parts;
  const Json* content = item.find(field);
  if (content == nullptr) return parts;
  const std::string path = item.path(field);
  if (content->is_string()) {
    parts.push_back({content->get<std::string>()});
    return parts;
  }
  if (!content->is_array()) {
    return field_error(path, str_cat("`", path, "` must be a string or a list of parts"),
                       "invalid_type");
  }
  if (content->size() > kMaxParts) {
    return field_error(path, str_cat("`", path, "` may have at most ", kMaxParts, " parts"),
                       "array_above_max_length");
  }
  for (std::size_t i = 0; i < content->size(); ++i) {
    const std::string where = str_cat(path, "[", i, "]");
    if (!(*content)[i].is_object()) {
      return field_error(where, str_cat("`", where, "` must be an object"), "invalid_type");
    }
    ASSIGN_OR_RETURN(Part part, read_part(Fields((*content)[i], where), images));
    parts.push_back(std::move(part));
  }
  return parts;
}

std::string joined(const std::vector<Part>& parts) {
  std::string text;
  for (const Part& part : parts) {
    if (&part != &parts.front()) text += '\n';
    text += part.text;
  }
  return text;
}

/// Puts items together to turns.
class TurnBuilder {
 public:
  /// `has_output` tells which calls are answered anywhere: one that was cut off need not be.
  TurnBuilder(std::set<std::string> has_output, ImageReader& images)
      : has_output_(std::move(has_output)), images_(images) {}

  absl::Status add(const Fields& item) {
    ASSIGN_OR_RETURN(const std::string type, require_string(item, "type"));
    if (type == "message") return add_message(item);
    if (type == "reasoning") return add_reasoning(item);
    if (type == "function_call" || type == "custom_tool_call") return add_call(item, type);
    if (type == "function_call_output" || type == "custom_tool_call_output") {
      return add_output(item);
    }
    // What the hosted API looked up by itself shows in the answer that follows.
    if (type == "web_search_call") return absl::OkStatus();
    return field_error(item.path("type"),
                       str_cat("`", item.path("type"),
                               "` must be message, reasoning, function_call, "
                               "function_call_output, custom_tool_call, custom_tool_call_output "
                               "or web_search_call, is \"",
                               type, "\""));
  }

  void add(Message message) { place(std::move(message)); }

  absl::StatusOr<std::vector<Message>> finish() {
    if (!open_.empty()) {
      return field_error("input",
                         str_cat("No tool output found for function call ", *open_.begin(), "."));
    }
    close_turn();
    return std::move(messages_);
  }

 private:
  absl::Status add_message(const Fields& item) {
    Message message;
    ASSIGN_OR_RETURN(const std::string role, require_string(item, "role"));
    if (role == "system" || role == "developer") {
      message.role = Role::kSystem;
    } else if (role == "assistant") {
      message.role = Role::kAssistant;
    } else if (role != "user") {
      return field_error(
          item.path("role"),
          str_cat("`", item.path("role"), "` must be system, developer, user or assistant, is \"",
                  role, "\""));
    }
    if (item.find("content") == nullptr) return missing(item.path("content"));
    ASSIGN_OR_RETURN(message.parts, read_parts(item, "content", images_));
    place(std::move(message));
    return absl::OkStatus();
  }

  /// Only the reasoning itself can be shown to the model: as text, or sealed by this server. A
  /// summary alone, or what another server sealed, cannot.
  absl::Status add_reasoning(const Fields& item) {
    ASSIGN_OR_RETURN(const std::vector<Part> parts, read_parts(item, "content", images_));
    ASSIGN_OR_RETURN(const auto sealed, item.string("encrypted_content"));
    Message message;
    message.role = Role::kAssistant;
    if (!parts.empty()) {
      message.reasoning = joined(parts);
    } else if (sealed) {
      message.reasoning = unseal_reasoning(*sealed);
    }
    if (message.reasoning) place(std::move(message));
    return absl::OkStatus();
  }

  absl::Status add_call(const Fields& item, const std::string& type) {
    ToolCall call;
    ASSIGN_OR_RETURN(call.id, require_name(item, "call_id"));
    ASSIGN_OR_RETURN(call.name, require_name(item, "name"));
    ASSIGN_OR_RETURN(const auto name_space, item.string("namespace"));
    if (name_space && !name_space->empty()) call.name = str_cat(*name_space, "::", call.name);
    if (type == "custom_tool_call") {
      ASSIGN_OR_RETURN(const std::string text, require_string(item, "input"));
      call.arguments = str_cat("{\"input\": ", recipe::quoted(text), "}");
    } else {
      ASSIGN_OR_RETURN(call.arguments, require_string(item, "arguments"));
    }
    ASSIGN_OR_RETURN(const auto status, item.string("status"));
    if (status == "incomplete" && !has_output_.contains(call.id)) return absl::OkStatus();
    if (turn_ && !outputs_.empty() && open_.empty()) close_turn();
    if (answered_.contains(call.id) || !open_.insert(call.id).second) {
      return field_error(item.path("call_id"),
                         str_cat("two calls have the `call_id` \"", call.id, "\""));
    }
    if (!turn_) turn_.emplace().role = Role::kAssistant;
    turn_->tool_calls.push_back(std::move(call));
    return absl::OkStatus();
  }

  absl::Status add_output(const Fields& item) {
    Message output;
    output.role = Role::kTool;
    ASSIGN_OR_RETURN(output.tool_call_id, require_name(item, "call_id"));
    if (item.find("output") == nullptr) return missing(item.path("output"));
    ASSIGN_OR_RETURN(output.parts, read_parts(item, "output", images_));
    if (open_.erase(output.tool_call_id) == 0) {
      return field_error(item.path("call_id"),
                         str_cat("No tool call found for function call output with call_id ",
                                 output.tool_call_id, "."));
    }
    answered_.insert(output.tool_call_id);
    outputs_.push_back(std::move(output));
    if (open_.empty() && !held_.empty()) close_turn();
    return absl::OkStatus();
  }

  /// Messages and reasoning, in their place: behind a group of calls that waits for outputs, or in
  /// the turn that is being put together.
  void place(Message message) {
    if (!open_.empty()) {
      held_.push_back(std::move(message));
      return;
    }
    if (message.role != Role::kAssistant) {
      close_turn();
      messages_.push_back(std::move(message));
      return;
    }
    const bool has_answer = turn_ && (!turn_->tool_calls.empty() || !turn_->parts.empty());
    if (has_answer) close_turn();
    if (!turn_) {
      turn_ = std::move(message);
    } else if (message.reasoning) {
      turn_->reasoning = turn_->reasoning ? str_cat(*turn_->reasoning, "\n", *message.reasoning)
                                          : message.reasoning;
    } else {
      turn_->parts = std::move(message.parts);
    }
  }

  void close_turn() {
    if (turn_) messages_.push_back(*std::exchange(turn_, std::nullopt));
    for (Message& output : std::exchange(outputs_, {})) messages_.push_back(std::move(output));
    for (Message& message : std::exchange(held_, {})) place(std::move(message));
  }

  const std::set<std::string> has_output_;
  ImageReader& images_;
  std::vector<Message> messages_;
  std::optional<Message> turn_;   // an assistant turn that is not complete
  std::vector<Message> outputs_;  // of its calls
  std::vector<Message> held_;     // came between calls and outputs
  std::set<std::string> open_;    // calls without output
  std::set<std::string> answered_;
};

void note_outputs(const Json& items, std::set<std::string>& call_ids) {
  for (const Json& item : items) {
    const bool is_output =
        item["type"] == "function_call_output" || item["type"] == "custom_tool_call_output";
    const auto id = item.find("call_id");
    if (is_output && id != item.end() && id->is_string()) call_ids.insert(id->get<std::string>());
  }
}

absl::Status add_items(const Json& items, std::string_view list, TurnBuilder& builder) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    RETURN_IF_ERROR(builder.add(Fields(items[i], str_cat(list, "[", i, "]"))));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Message>> read_responses_input(const ResponsesInput& input,
                                                          ImageReader& images) {
  if (!input.instructions && input.earlier.empty() && input.items.empty()) return missing("input");
  std::set<std::string> has_output;
  note_outputs(input.earlier, has_output);
  note_outputs(input.items, has_output);
  TurnBuilder builder(std::move(has_output), images);
  if (input.instructions) {
    Message system;
    system.role = Role::kSystem;
    system.parts.push_back({*input.instructions});
    builder.add(std::move(system));
  }
  RETURN_IF_ERROR(add_items(input.earlier, "previous_response_id.input", builder));
  RETURN_IF_ERROR(add_items(input.items, "input", builder));
  return builder.finish();
}

std::string seal_reasoning(const std::string& reasoning) {
  return str_cat(kSeal, absl::Base64Escape(reasoning));
}

std::optional<std::string> unseal_reasoning(const std::string& sealed) {
  std::string reasoning;
  const bool is_ours = sealed.starts_with(kSeal) &&
                       absl::Base64Unescape(to_absl(sealed).substr(kSeal.size()), &reasoning);
  if (!is_ours) return std::nullopt;
  return reasoning;
}

}  // namespace millrace::api::recipe
