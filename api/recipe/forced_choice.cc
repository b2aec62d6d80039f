#include "api/recipe/forced_choice.h"

#include "api/recipe/request_error.h"

namespace millrace::api::recipe {

absl::Status settle_forced_choice(ThinkingSource source, Conversation& conversation) {
  if (!conversation.tool_choice.is_forced() || conversation.thinking == Thinking::kOff) {
    return absl::OkStatus();
  }
  if (source == ThinkingSource::kRequest) {
    return field_error("tool_choice", "Thinking mode does not support this tool_choice");
  }
  conversation.thinking = Thinking::kOff;
  return absl::OkStatus();
}

}  // namespace millrace::api::recipe
