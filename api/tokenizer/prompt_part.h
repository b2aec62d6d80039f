#pragma once

#include <string_view>

#include "common/types.h"

namespace millrace::api::tokenizer {

/// A stretch of a prompt: a token, or text that is encoded with the base vocabulary alone.
struct PromptPart {
  std::string_view text;
  TokenId token = -1;  ///< not negative: this token, and text means nothing
};

}  // namespace millrace::api::tokenizer
