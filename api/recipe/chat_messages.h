#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/fields.h"
#include "api/recipe/image_reference.h"

namespace millrace::api::recipe {

/// The `messages` of a Chat Completions body. Every call of an assistant message is answered by
/// exactly one tool message directly behind it; only the last message may be a prefix. Numbers of
/// messages, parts and calls and the lengths of ids and names are bounded.
/// Errors: kInvalidArgument, with the field's name.
absl::StatusOr<std::vector<Message>> read_chat_messages(const Fields& body, ImageReader& images);

}  // namespace millrace::api::recipe
