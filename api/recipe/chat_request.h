#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/fields.h"
#include "api/recipe/tool_call_parser.h"

namespace millrace::api::recipe {

/// A decoded Chat Completions request.
struct ChatRequest {
  Conversation conversation;
  ParallelCalls parallel_calls = ParallelCalls::kAllowed;
  Sampling sampling;
  StreamOptions stream;
  bool return_token_ids = false;  ///< of prompt and answer, as vLLM does
  std::string user_id;            ///< `safety_identifier`, else `user`: whom the caller serves
};

/// Decodes and validates a body. Known fields with unknown values are refused by name, unknown
/// fields are ignored; what this server cannot do yet (JSON schemas for the answer, the functions
/// that preceded tools) is refused. Images are carried as references. Errors: kInvalidArgument,
/// kNotFound (model), with the field's name.
absl::StatusOr<ChatRequest> parse_chat_request(std::string_view body,
                                               const ModelNames& served_model, int vocab_size,
                                               Thinking default_thinking);

}  // namespace millrace::api::recipe
