#include "api/recipe/conversation_json.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "api/recipe/fields.h"
#include "api/recipe/json_text.h"
#include "api/recipe/request_error.h"
#include "api/recipe/tool_schema.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

template <typename Value, std::size_t kCount>
using NameTable = std::array<std::pair<std::string_view, Value>, kCount>;

constexpr NameTable<Role, 6> kRoles = {{{"system", Role::kSystem},
                                        {"developer", Role::kDeveloper},
                                        {"user", Role::kUser},
                                        {"assistant", Role::kAssistant},
                                        {"tool", Role::kTool},
                                        {"latest_reminder", Role::kLatestReminder}}};
constexpr NameTable<Task, 6> kTasks = {{{"action", Task::kAction},
                                        {"query", Task::kQuery},
                                        {"authority", Task::kAuthority},
                                        {"domain", Task::kDomain},
                                        {"title", Task::kTitle},
                                        {"read_url", Task::kReadUrl}}};
constexpr NameTable<Effort::Name, 4> kEfforts = {{{"low", Effort::Name::kLow},
                                                  {"high", Effort::Name::kHigh},
                                                  {"xhigh", Effort::Name::kXhigh},
                                                  {"max", Effort::Name::kMax}}};
constexpr NameTable<ToolChoice::Kind, 3> kChoices = {{{"auto", ToolChoice::Kind::kAuto},
                                                      {"none", ToolChoice::Kind::kNone},
                                                      {"required", ToolChoice::Kind::kRequired}}};
constexpr NameTable<ResponseFormat, 2> kFormats = {
    {{"text", ResponseFormat::kText}, {"json_object", ResponseFormat::kJsonObject}}};

template <typename Value, std::size_t kCount>
std::string_view name_of(const NameTable<Value, kCount>& table, Value value) {
  const auto* const found = std::find_if(table.begin(), table.end(),
                                         [&](const auto& entry) { return entry.second == value; });
  return found->first;
}

template <typename Value, std::size_t kCount>
absl::StatusOr<Value> value_of(const NameTable<Value, kCount>& table, const std::string& path,
                               std::string_view name) {
  std::string allowed;
  for (const auto& [candidate, value] : table) {
    if (candidate == name) return value;
    allowed.append(allowed.empty() ? "" : ", ").append(candidate);
  }
  return field_error(path, str_cat("`", path, "` must be one of ", allowed));
}

// Writing: text is put together from texts, because a JSON value would round large numbers.

/// std::quoted() would win over our own for a std::string.
std::string string_text(std::string_view text) { return quoted(text); }

/// An object or a list of JSON texts.
class TextWriter {
 public:
  explicit TextWriter(char open) : text_(1, open) {}

  void member(std::string_view name, std::string_view json) {
    separate();
    text_.append(string_text(name)).append(": ").append(json);
  }
  void element(std::string_view json) {
    separate();
    text_.append(json);
  }
  std::string close() && {
    text_.push_back(text_.front() == '{' ? '}' : ']');
    return std::move(text_);
  }

 private:
  void separate() {
    if (text_.size() > 1) text_.append(", ");
  }
  std::string text_;
};

template <typename List, typename Write>
std::string list_text(const List& list, Write write) {
  TextWriter text('[');
  for (const auto& entry : list) text.element(write(entry));
  return std::move(text).close();
}

std::string tool_text(const Tool& tool) {
  TextWriter text('{');
  text.member("name", string_text(tool.name));
  if (!tool.name_space.empty()) {
    text.member("namespace", string_text(tool.name_space));
    text.member("namespace_description", string_text(tool.namespace_description));
  }
  text.member("description", string_text(tool.description));
  text.member("parameters", tool.parameters);
  text.member("strict", tool.is_strict ? "true" : "false");
  if (!tool.as_given.empty()) text.member("function", tool.as_given);
  return std::move(text).close();
}

std::string part_text(const Part& part) {
  const bool is_text = part.kind == Part::Kind::kText;
  TextWriter text('{');
  text.member("type", is_text ? R"("text")" : R"("image")");
  text.member(is_text ? "text" : "image", string_text(part.text));
  return std::move(text).close();
}

std::string content_text(const std::vector<Part>& parts) {
  if (parts.empty()) return R"("")";
  if (parts.size() == 1 && parts[0].kind == Part::Kind::kText) return string_text(parts[0].text);
  return list_text(parts, part_text);
}

std::string call_text(const ToolCall& call) {
  TextWriter text('{');
  text.member("id", string_text(call.id));
  text.member("name", string_text(call.name));
  text.member("arguments", string_text(call.arguments));
  return std::move(text).close();
}

std::string message_text(const Message& message) {
  TextWriter text('{');
  text.member("role", string_text(name_of(kRoles, message.role)));
  text.member("content", content_text(message.parts));
  if (message.reasoning) text.member("reasoning_content", string_text(*message.reasoning));
  if (!message.tool_calls.empty()) {
    text.member("tool_calls", list_text(message.tool_calls, call_text));
  }
  if (message.role == Role::kTool) text.member("tool_call_id", string_text(message.tool_call_id));
  if (!message.tools.empty()) text.member("tools", list_text(message.tools, tool_text));
  if (message.task) text.member("task", string_text(name_of(kTasks, *message.task)));
  if (message.is_prefix) text.member("prefix", "true");
  return std::move(text).close();
}

std::string choice_text(const ToolChoice& choice) {
  if (choice.kind != ToolChoice::Kind::kNamed) return string_text(name_of(kChoices, choice.kind));
  TextWriter text('{');
  text.member("name", string_text(choice.name));
  return std::move(text).close();
}

// Reading.

absl::Status not_a(const std::string& path, std::string_view what) {
  return field_error(path, str_cat("`", path, "` must be ", what), "invalid_type");
}

/// A member that is a list of objects; each is read with its path and its text. Absent: none.
template <typename Value, typename Read>
absl::StatusOr<std::vector<Value>> read_list(const Fields& object, std::string_view name,
                                             std::string_view raw, Read read) {
  std::vector<Value> values;
  const Json* list = object.find(name);
  if (list == nullptr) return values;
  if (!list->is_array()) return not_a(object.path(name), "a list");
  ASSIGN_OR_RETURN(const auto texts, raw_elements(raw_member(raw, name)));
  values.reserve(list->size());
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string path = str_cat(object.path(name), "[", i, "]");
    if (!(*list)[i].is_object()) return not_a(path, "an object");
    ASSIGN_OR_RETURN(Value value, read(Fields((*list)[i], path), texts[i]));
    values.push_back(std::move(value));
  }
  return values;
}

absl::StatusOr<Tool> read_tool(const Fields& fields, std::string_view raw) {
  Tool tool;
  RETURN_IF_ERROR(read_tool_head(fields, tool));
  ASSIGN_OR_RETURN(const auto name_space, fields.string("namespace"));
  tool.name_space = name_space.value_or("");
  ASSIGN_OR_RETURN(const auto description, fields.string("namespace_description"));
  tool.namespace_description = description.value_or("");
  RETURN_IF_ERROR(read_schema(fields, "parameters", raw, tool));
  ASSIGN_OR_RETURN(const auto strict, fields.boolean("strict"));
  tool.is_strict = strict.value_or(false);
  RETURN_IF_ERROR(fields.require_object("function"));
  if (fields.find("function") != nullptr) {
    ASSIGN_OR_RETURN(tool.as_given, python_json(raw_member(raw, "function")));
  }
  return tool;
}

absl::StatusOr<Part> read_part(const Fields& fields, std::string_view /*raw*/) {
  ASSIGN_OR_RETURN(const auto type, fields.string("type"));
  const bool is_image = type == "image";
  if (!is_image && type != "text") {
    return field_error(fields.path("type"),
                       str_cat("`", fields.path("type"), "` must be text or image"));
  }
  const std::string_view name = is_image ? "image" : "text";
  ASSIGN_OR_RETURN(const auto text, fields.string(name));
  if (!text) return not_a(fields.path(name), "a string");
  return Part{.text = *text, .kind = is_image ? Part::Kind::kImage : Part::Kind::kText};
}

absl::StatusOr<std::vector<Part>> read_content(const Fields& message, std::string_view raw) {
  const Json* content = message.find("content");
  if (content != nullptr && content->is_string()) {
    return std::vector<Part>{{content->get<std::string>()}};
  }
  return read_list<Part>(message, "content", raw, read_part);
}

absl::StatusOr<ToolCall> read_call(const Fields& fields, std::string_view /*raw*/) {
  ToolCall call;
  const std::array<std::pair<std::string_view, std::string*>, 3> members = {
      {{"id", &call.id}, {"name", &call.name}, {"arguments", &call.arguments}}};
  for (const auto& [name, text] : members) {
    ASSIGN_OR_RETURN(auto value, fields.string(name));
    if (!value && name != "id") return not_a(fields.path(name), "a string");
    *text = std::move(value).value_or("");
  }
  return call;
}

absl::StatusOr<Message> read_message(const Fields& fields, std::string_view raw) {
  Message message;
  ASSIGN_OR_RETURN(const auto role, fields.string("role"));
  ASSIGN_OR_RETURN(message.role, value_of(kRoles, fields.path("role"), role.value_or("")));
  ASSIGN_OR_RETURN(message.parts, read_content(fields, raw));
  ASSIGN_OR_RETURN(message.reasoning, fields.string("reasoning_content"));
  ASSIGN_OR_RETURN(message.tool_calls, read_list<ToolCall>(fields, "tool_calls", raw, read_call));
  ASSIGN_OR_RETURN(const auto tool_call_id, fields.string("tool_call_id"));
  message.tool_call_id = tool_call_id.value_or("");
  ASSIGN_OR_RETURN(message.tools, read_list<Tool>(fields, "tools", raw, read_tool));
  ASSIGN_OR_RETURN(const auto task, fields.string("task"));
  if (task) {
    ASSIGN_OR_RETURN(message.task, value_of(kTasks, fields.path("task"), *task));
  }
  ASSIGN_OR_RETURN(const auto prefix, fields.boolean("prefix"));
  message.is_prefix = prefix.value_or(false);
  return message;
}

absl::Status read_tool_choice(const Fields& body, Conversation& conversation) {
  const Json* choice = body.find("tool_choice");
  if (choice == nullptr) return absl::OkStatus();
  if (choice->is_object()) {
    ASSIGN_OR_RETURN(const auto name, Fields(*choice, "tool_choice").string("name"));
    ASSIGN_OR_RETURN(conversation.tool_choice,
                     choose_tool(conversation.tools, name, "tool_choice"));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const auto name, body.string("tool_choice"));
  ASSIGN_OR_RETURN(conversation.tool_choice.kind, value_of(kChoices, "tool_choice", *name));
  return absl::OkStatus();
}

absl::Status read_effort(const Fields& body, Conversation& conversation) {
  const Json* effort = body.find("reasoning_effort");
  if (effort == nullptr) return absl::OkStatus();
  if (effort->is_string()) {
    ASSIGN_OR_RETURN(conversation.effort.name,
                     value_of(kEfforts, "reasoning_effort", effort->get<std::string>()));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const auto exact, body.integer("reasoning_effort", 1, 100));
  conversation.effort.exact = static_cast<int>(*exact);
  return absl::OkStatus();
}

}  // namespace

std::string conversation_json(const Conversation& conversation) {
  TextWriter text('{');
  text.member("messages", list_text(conversation.messages, message_text));
  text.member("tools", list_text(conversation.tools, tool_text));
  text.member("tool_choice", choice_text(conversation.tool_choice));
  text.member("response_format", string_text(name_of(kFormats, conversation.response_format)));
  text.member("thinking", conversation.thinking == Thinking::kOn ? "true" : "false");
  const Effort& effort = conversation.effort;
  text.member("reasoning_effort",
              effort.exact ? str_cat(*effort.exact) : string_text(name_of(kEfforts, effort.name)));
  return std::move(text).close();
}

absl::StatusOr<Conversation> read_conversation(std::string_view json) {
  ASSIGN_OR_RETURN(const Json value, parse_body(json));
  const Fields body(value, "");
  Conversation conversation;
  if (body.find("messages") == nullptr) {
    return field_error("messages", "`messages` is required", "missing_required_parameter");
  }
  ASSIGN_OR_RETURN(conversation.messages, read_list<Message>(body, "messages", json, read_message));
  ASSIGN_OR_RETURN(conversation.tools, read_list<Tool>(body, "tools", json, read_tool));
  RETURN_IF_ERROR(read_tool_choice(body, conversation));
  ASSIGN_OR_RETURN(const auto format, body.string("response_format"));
  if (format) {
    ASSIGN_OR_RETURN(conversation.response_format, value_of(kFormats, "response_format", *format));
  }
  ASSIGN_OR_RETURN(const auto thinking, body.boolean("thinking"));
  conversation.thinking = thinking.value_or(true) ? Thinking::kOn : Thinking::kOff;
  RETURN_IF_ERROR(read_effort(body, conversation));
  return conversation;
}

std::string sampling_json(const Sampling& sampling) {
  Json json = Json::object();
  json["temperature"] = sampling.temperature;
  json["top_p"] = sampling.top_p;
  json["top_k"] = sampling.top_k;
  json["min_p"] = sampling.min_p;
  json["presence_penalty"] = sampling.presence_penalty;
  json["frequency_penalty"] = sampling.frequency_penalty;
  json["repetition_penalty"] = sampling.repetition_penalty;
  json["logit_bias"] = Json::object();
  for (const auto& [token, bias] : sampling.logit_bias) json["logit_bias"][str_cat(token)] = bias;
  json["seed"] = sampling.seed ? Json(static_cast<std::int64_t>(*sampling.seed)) : Json();
  json["n"] = sampling.choices;
  json["stop"] = sampling.stop;
  json["include_stop_str_in_output"] = sampling.keeps_stop;
  json["stop_token_ids"] = sampling.stop_tokens;
  json["max_tokens"] = sampling.max_tokens ? Json(*sampling.max_tokens) : Json();
  json["min_tokens"] = sampling.min_tokens;
  json["ignore_eos"] = sampling.ignore_eos;
  json["logprobs"] = sampling.return_logprobs;
  json["top_logprobs"] = sampling.top_logprobs;
  return dump_json(json);
}

}  // namespace millrace::api::recipe
