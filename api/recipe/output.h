#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/types.h"

namespace millrace::api::recipe {

/// A token that the engine sampled, with what it knows about the alternatives.
struct GeneratedToken {
  TokenId id = -1;
  float logprob = 0;                           ///< natural log, before temperature and filters
  std::vector<std::pair<TokenId, float>> top;  ///< most likely first; as many as were asked for
};

/// A piece of output, parsed: what a client may be sent now.
struct OutputDelta {
  std::string reasoning;
  std::string text;
  std::vector<GeneratedToken> text_tokens;  ///< tokens whose first byte lies in `text`
  std::vector<TokenId> ids;                 ///< all tokens that arrived, in order

  bool is_empty() const {
    return reasoning.empty() && text.empty() && text_tokens.empty() && ids.empty();
  }
};

enum class FinishReason { kStop, kLength };

struct Usage {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
  std::uint32_t reasoning_tokens = 0;
};

}  // namespace millrace::api::recipe
