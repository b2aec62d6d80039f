#pragma once

#include "absl/status/status.h"
#include "api/recipe/conversation.h"

namespace millrace::api::recipe {

/// Who decided whether the model thinks.
enum class ThinkingSource { kRequest, kDeployment };

/// A choice that forces a call leaves no room for reasoning: thinking that was asked for is
/// refused, thinking that is on by default yields.
absl::Status settle_forced_choice(ThinkingSource source, Conversation& conversation);

}  // namespace millrace::api::recipe
