#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/fields.h"

namespace millrace::api::recipe {

/// A decoded Chat Completions request.
struct ChatRequest {
  Conversation conversation;
  Sampling sampling;
  StreamOptions stream;
};

/// Decodes and validates a body. Known fields with unknown values are refused by name, unknown
/// fields are ignored; `tools`, a tool choice other than none or auto and a response format other
/// than text are refused. Errors: kInvalidArgument, kNotFound (model), with the field's name.
absl::StatusOr<ChatRequest> parse_chat_request(std::string_view body, std::string_view served_model,
                                               int vocab_size, Thinking default_thinking);

}  // namespace millrace::api::recipe
