#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "api/recipe/conversation.h"
#include "api/recipe/fields.h"
#include "api/recipe/tool_call_parser.h"

namespace millrace::api::recipe {

/// What a Chat Completions body says about tools and the form of the answer: `tools`,
/// `tool_choice`, `parallel_tool_calls` and `response_format`, into `conversation` (whose messages
/// are read already). `raw_body` is the body's text, of which schemas keep the exact numbers.
/// Errors: kInvalidArgument, with the field's name.
absl::Status read_chat_tools(const Fields& body, std::string_view raw_body,
                             Conversation& conversation, ParallelCalls& parallel_calls);

}  // namespace millrace::api::recipe
