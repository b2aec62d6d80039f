#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/protocols.h"

namespace millrace::api::recipe {

/// A conversation as JSON, for tools and bindings:
///
///     {"messages": [{"role", "content", "reasoning_content"?, "tool_calls"?, "tool_call_id"?,
///                    "tools"?, "task"?, "prefix"?}],
///      "tools": [{"name", "namespace"?, "namespace_description"?, "description", "parameters",
///                 "strict", "function"?}],
///      "tool_choice": "auto" | "none" | "required" | {"name"},
///      "response_format": "text" | "json_object",
///      "thinking": true | false, "reasoning_effort": "low" | "high" | "xhigh" | "max" | 1..100}
///
/// `role` is system, developer (the release encoders'), user, assistant, tool or latest_reminder;
/// `content` a text or a list of {"type": "text", "text"} and {"type": "image", "image":
/// reference}; a call is {"id", "name", "arguments": text}; `function` is the function object that
/// the release encoders show the model unchanged. Numbers in schemas keep their text.
std::string conversation_json(const Conversation& conversation);

/// The inverse. Only `messages` is required; what is absent has Conversation's default.
/// Errors: kInvalidArgument, with the field's name.
absl::StatusOr<Conversation> read_conversation(std::string_view json);

/// What else a request asks for, in the spelling of Chat Completions: fields that it left alone are
/// listed with the values that count.
std::string sampling_json(const Sampling& sampling);

}  // namespace millrace::api::recipe
