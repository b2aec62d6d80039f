#include "api/recipe/thinking_sampling.h"

#include <algorithm>

namespace millrace::api::recipe {

void settle_thinking_sampling(ThinkingSampling rule, PromptFormat format,
                              const Conversation& conversation, Sampling& sampling) {
  constexpr double kTopP = 0.95;
  if (rule == ThinkingSampling::kAsRequested || conversation.thinking == Thinking::kOff) return;
  sampling.temperature = 1;
  sampling.presence_penalty = 0;
  sampling.frequency_penalty = 0;
  sampling.repetition_penalty = 1;
  if (format == PromptFormat::kV41) {
    sampling.top_p = std::max(sampling.top_p, kTopP);
  } else {
    sampling.top_p = conversation.tools.empty() ? 1 : kTopP;
  }
}

}  // namespace millrace::api::recipe
