#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "api/recipe/conversation.h"
#include "api/recipe/fields.h"
#include "api/recipe/tool_call_parser.h"

namespace millrace::api::recipe {

/// What a Messages body says about tools: `tools` and `tool_choice`, into `conversation`.
/// `raw_body` is the body's text, of which schemas keep the exact numbers. Tools that a server
/// would have to run are refused. Errors: kInvalidArgument, with the field's name.
absl::Status read_messages_tools(const Fields& body, std::string_view raw_body,
                                 Conversation& conversation, ParallelCalls& parallel_calls);

}  // namespace millrace::api::recipe
