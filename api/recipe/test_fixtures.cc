#include "api/recipe/test_fixtures.h"

#include <map>
#include <sstream>
#include <utility>

#include "api/recipe/json_text.h"
#include "common/check.h"
#include "common/mapped_file.h"
#include "common/str_cat.h"

namespace millrace::api::recipe::test {
namespace {

Tool release_tool(const Json& given) {
  const Json& function = given.at("function");
  Tool tool;
  tool.name = function.at("name").get<std::string>();
  tool.description = function.value("description", "");
  if (function.contains("parameters"))
    tool.parameters = *python_json(function["parameters"].dump());
  tool.as_given = *python_json(function.dump());
  return tool;
}

std::vector<Part> release_parts(const Json& content) {
  if (content.is_null()) return {};
  if (content.is_string()) return {{content.get<std::string>()}};
  std::vector<Part> parts;
  for (const Json& part : content) {
    if (part.at("type") == "text") {
      parts.push_back({part.at("text").get<std::string>()});
    } else {
      parts.push_back({part.at("image_url").at("url").get<std::string>(), Part::Kind::kImage});
    }
  }
  return parts;
}

Message release_message(const Json& given) {
  const std::map<std::string, Role> roles = {
      {"system", Role::kSystem}, {"developer", Role::kDeveloper},
      {"user", Role::kUser},     {"assistant", Role::kAssistant},
      {"tool", Role::kTool},     {"latest_reminder", Role::kLatestReminder}};
  const std::map<std::string, Task> tasks = {
      {"action", Task::kAction}, {"query", Task::kQuery}, {"authority", Task::kAuthority},
      {"domain", Task::kDomain}, {"title", Task::kTitle}, {"read_url", Task::kReadUrl}};
  Message message;
  message.role = roles.at(given.at("role").get<std::string>());
  if (given.contains("content")) message.parts = release_parts(given["content"]);
  if (given.contains("reasoning_content")) {
    message.reasoning = given["reasoning_content"].get<std::string>();
  }
  if (given.contains("task")) message.task = tasks.at(given["task"].get<std::string>());
  message.tool_call_id = given.value("tool_call_id", "");
  for (const Json& tool : given.value("tools", Json::array())) {
    message.tools.push_back(release_tool(tool));
  }
  for (const Json& call : given.value("tool_calls", Json::array())) {
    message.tool_calls.push_back({call.value("id", ""),
                                  call.at("function").at("name").get<std::string>(),
                                  call.at("function").at("arguments").get<std::string>()});
  }
  return message;
}

}  // namespace

std::string read_fixture(const std::string& name) {
  auto text = read_file(MILLRACE_SOURCE_DIR "/tests/data/encoding/" + name);
  CHECK(text.ok());
  return *std::move(text);
}

std::vector<Json> read_fixture_lines(const std::string& name) {
  std::istringstream lines(read_fixture(name));
  std::vector<Json> values;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) values.push_back(*parse_json(line));
  }
  return values;
}

std::vector<CapturedStream> captured_streams() {
  std::vector<CapturedStream> streams;
  for (const char* name : {"content_before_tool", "fragmented_tokens", "mixed_param_types",
                           "multi_tool", "no_tool", "special_chars", "tool"}) {
    Json capture =
        *parse_json(read_fixture(str_cat("v4-streams/chat_completion_stream_", name, ".json")));
    std::string output;
    for (const Json& event : capture["input_stream"]) {
      const Json& delta = event["data"]["choices"][0]["delta"];
      if (delta.contains("content") && delta["content"].is_string()) {
        output += delta["content"].get<std::string>();
      }
    }
    streams.push_back({name, std::move(output), std::move(capture["expected_output"])});
  }
  return streams;
}

Conversation release_conversation(const Json& body) {
  const std::map<std::string, Effort::Name> efforts = {
      {"low", Effort::Name::kLow}, {"high", Effort::Name::kHigh}, {"max", Effort::Name::kMax}};
  Conversation conversation;
  conversation.thinking =
      body.value("thinking_mode", "thinking") == "thinking" ? Thinking::kOn : Thinking::kOff;
  if (body.contains("reasoning_effort")) {
    const Json& effort = body["reasoning_effort"];
    if (effort.is_string()) {
      conversation.effort.name = efforts.at(effort.get<std::string>());
    } else {
      conversation.effort.exact = effort.get<int>();
    }
  }
  for (const Json& tool : body.value("tools", Json::array())) {
    conversation.tools.push_back(release_tool(tool));
  }
  for (const Json& message : body.at("messages")) {
    conversation.messages.push_back(release_message(message));
  }
  return conversation;
}

std::vector<Json> events_of(const std::string& stream) {
  constexpr std::string_view kName = "event: ";
  constexpr std::string_view kData = "data: ";
  std::vector<Json> values;
  for (std::size_t at = 0; at < stream.size();) {
    const std::size_t end = stream.find("\n\n", at);
    CHECK(end != std::string::npos, stream);
    std::string_view event = std::string_view(stream).substr(at, end - at);
    at = end + 2;
    std::string_view name;
    if (event.starts_with(kName)) {
      name = event.substr(kName.size(), event.find('\n') - kName.size());
      event.remove_prefix(kName.size() + name.size() + 1);
    }
    CHECK(event.starts_with(kData), stream);
    event.remove_prefix(kData.size());
    if (event == "[DONE]") continue;
    values.push_back(*parse_json(event));
    CHECK(name.empty() || values.back()["type"] == name, event);
  }
  return values;
}

std::vector<Json> merged(const std::vector<Json>& events,
                         const std::function<Json*(Json& event)>& piece_of) {
  std::vector<Json> result;
  for (Json event : events) {
    Json* piece = piece_of(event);
    Json* before = result.empty() ? nullptr : piece_of(result.back());
    if (piece != nullptr && before != nullptr) {
      *before = before->get<std::string>() + piece->get<std::string>();
    } else {
      result.push_back(std::move(event));
    }
  }
  return result;
}

std::string prompt_text(const std::vector<Segment>& segments) {
  std::string text;
  for (const Segment& segment : segments) text += segment.text;
  return text;
}

}  // namespace millrace::api::recipe::test
