#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/types.h"

namespace millrace::api::recipe {

/// Who speaks. `kDeveloper` is the release encoder's role of that name, a user turn that may bring
/// tools; the protocols' developer messages are system messages.
enum class Role { kSystem, kDeveloper, kUser, kAssistant, kTool, kLatestReminder };

/// What a message asks the model for besides an answer (release encoder only): the next assistant
/// message is the task's result, without header or reasoning.
enum class Task { kAction, kQuery, kAuthority, kDomain, kTitle, kReadUrl };

/// A piece of a message's content: text, or an image in its place.
struct Part {
  enum class Kind { kText, kImage };
  std::string text;  ///< of an image: its reference
  Kind kind = Kind::kText;

  bool operator==(const Part&) const = default;
};

/// A function that the model may call. JSON texts are in Python's form (json_text.h).
struct Tool {
  std::string name;        ///< without its namespace
  std::string name_space;  ///< empty = none
  std::string namespace_description;
  std::string description;
  std::string parameters = "{}";        ///< a JSON schema
  std::vector<std::string> properties;  ///< names of the schema's top-level properties
  std::string as_given;                 ///< the whole function object; may be empty
  bool is_strict = false;               ///< carried; nothing enforces it yet

  /// The name that the model sees: "name", or "namespace::name".
  std::string full_name() const { return name_space.empty() ? name : name_space + "::" + name; }
};

/// A call that an assistant turn made.
struct ToolCall {
  std::string id;         ///< may be empty in hand-made histories
  std::string name;       ///< full name
  std::string arguments;  ///< as it came: JSON of an object, or whatever the model wrote
};

struct Message {
  Role role = Role::kUser;
  std::vector<Part> parts;               ///< joined by a blank line when rendered
  std::optional<std::string> reasoning;  ///< assistant only
  std::vector<ToolCall> tool_calls;      ///< assistant only
  std::string tool_call_id;              ///< tool only
  std::vector<Tool> tools;               ///< developer, or a system message with tools of its own
  std::optional<Task> task;              ///< user or assistant
  bool is_prefix = false;                ///< last assistant message: to be continued, not answered
};

/// Whether the model reasons before it answers.
enum class Thinking { kOn, kOff };

/// How much the model reasons: a name, or a number from 1 to 100.
struct Effort {
  enum class Name { kLow, kHigh, kXhigh, kMax };
  Name name = Name::kHigh;
  std::optional<int> exact;  ///< wins over the name where the format has numbers
};

/// May, must or must not call tools.
struct ToolChoice {
  enum class Kind { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name;  ///< full name; of kNamed

  bool is_forced() const { return kind == Kind::kRequired || kind == Kind::kNamed; }
};

enum class ResponseFormat { kText, kJsonObject };

/// A conversation, whatever protocol it came by.
struct Conversation {
  std::vector<Message> messages;
  std::vector<Tool> tools;
  ToolChoice tool_choice;
  ResponseFormat response_format = ResponseFormat::kText;
  Thinking thinking = Thinking::kOn;
  Effort effort;                          ///< rendered in thinking mode only
  std::vector<std::string> image_fields;  ///< of the request: where its images stand, in order
};

/// How tokens are chosen and when generation ends. Defaults are the API's.
struct Sampling {
  double temperature = 1;
  double top_p = 1;
  std::uint32_t top_k = 0;  ///< 0 = off
  double min_p = 0;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  double repetition_penalty = 1;
  std::map<TokenId, float> logit_bias;
  std::optional<std::uint64_t> seed;  ///< of the first choice; each further one adds 1
  std::uint32_t choices = 1;          ///< independent answers to the same prompt
  std::vector<std::string> stop;
  bool keeps_stop = false;           ///< the stop string that was found belongs to the answer
  std::vector<TokenId> stop_tokens;  ///< end the answer as the end-of-sequence token does
  std::optional<std::uint32_t> max_tokens;
  std::uint32_t min_tokens = 0;  ///< before so many no token ends the answer
  bool ignore_eos = false;
  bool return_logprobs = false;
  std::uint32_t top_logprobs = 0;
};

}  // namespace millrace::api::recipe
