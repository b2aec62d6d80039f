#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "api/recipe/conversation.h"
#include "api/recipe/fields.h"

namespace millrace::api::recipe {

/// The effort that OpenAI's protocols ask for in a field: none (no thinking), minimal, low, medium,
/// high, xhigh, max, or a number from 1 to 100. True when the field is there: the request then
/// decided whether the model thinks. Errors: kInvalidArgument, with the field's name.
absl::StatusOr<bool> read_effort(const Fields& fields, std::string_view name,
                                 Conversation& conversation);

}  // namespace millrace::api::recipe
