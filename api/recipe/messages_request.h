#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/fields.h"
#include "api/recipe/tool_call_parser.h"

namespace millrace::api::recipe {

/// A decoded Messages request (Anthropic's protocol).
struct MessagesRequest {
  Conversation conversation;
  ParallelCalls parallel_calls = ParallelCalls::kAllowed;
  Sampling sampling;
  bool is_streamed = false;
  std::string user_id;  ///< `metadata.user_id`: whom the caller serves
};

/// Whether a body must say how long the answer may become: not when its tokens are only counted.
enum class MaxTokens { kRequired, kOptional };

/// Decodes and validates a body. Known fields with unknown values are refused by name, unknown
/// fields are ignored. Blocks that a model cannot be shown are replaced by a note (documents) or
/// skipped (redacted thinking, server tools of the history); images are refused.
/// Errors: kInvalidArgument, kNotFound (model), with the field's name.
absl::StatusOr<MessagesRequest> parse_messages_request(std::string_view body,
                                                       const ModelNames& served_model,
                                                       Thinking default_thinking,
                                                       MaxTokens max_tokens);

}  // namespace millrace::api::recipe
