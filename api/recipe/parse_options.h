#pragma once

#include "api/recipe/conversation.h"
#include "api/recipe/output_parser.h"

namespace millrace::api::recipe {

/// How the answer to a conversation is to be read: tool markup counts when tools are offered.
/// `reading` has what the deployment chose where sources disagree.
ParseOptions parse_options(const Conversation& conversation, Stage stage,
                           ParallelCalls parallel_calls, const ParseOptions& reading = {});

}  // namespace millrace::api::recipe
