#pragma once

#include "api/recipe/conversation.h"
#include "api/recipe/output_parser.h"

namespace millrace::api::recipe {

/// How the answer to a conversation is to be read: tool markup counts when tools are offered.
ParseOptions parse_options(const Conversation& conversation, Stage stage,
                           ParallelCalls parallel_calls);

}  // namespace millrace::api::recipe
