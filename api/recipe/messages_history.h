#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/fields.h"
#include "api/recipe/image_reference.h"

namespace millrace::api::recipe {

/// `system` and `messages` of a Messages body. `raw_body` is its text, of which the inputs of calls
/// keep the exact numbers.
///
/// Results of a user message stand before its other blocks, whatever order they came in. Every call
/// is answered once, in the next message. A last assistant message without calls is a beginning
/// that the answer continues. A system message in between becomes a marked user text.
/// Errors: kInvalidArgument, with the field's name.
absl::StatusOr<std::vector<Message>> read_messages_history(const Fields& body,
                                                           std::string_view raw_body,
                                                           ImageReader& images);

}  // namespace millrace::api::recipe
