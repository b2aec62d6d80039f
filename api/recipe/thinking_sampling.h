#pragma once

#include "api/recipe/conversation.h"
#include "api/recipe/render_options.h"

namespace millrace::api::recipe {

/// Sampling values of requests in thinking mode.
enum class ThinkingSampling {
  kAsRequested,
  /// The hosted API and deepseek-recipe: temperature 1 and no penalties, whatever a request says;
  /// top_p at least 0.95 (V4.1), or 0.95 with tools and 1 without (V4).
  kFixed,
};

/// Changes the sampling of a conversation in thinking mode by the deployment's rule.
void settle_thinking_sampling(ThinkingSampling rule, PromptFormat format,
                              const Conversation& conversation, Sampling& sampling);

}  // namespace millrace::api::recipe
