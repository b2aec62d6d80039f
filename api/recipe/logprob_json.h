#pragma once

#include <vector>

#include "api/recipe/output.h"
#include "api/tokenizer/tokenizer.h"
#include "common/json_fwd.h"

namespace millrace::api::recipe {

/// Log probabilities of tokens with their alternatives, in OpenAI's form: a list of {token,
/// logprob, bytes, top_logprobs}.
Json logprob_list(const std::vector<GeneratedToken>& tokens, const tokenizer::Tokenizer& tokenizer);

}  // namespace millrace::api::recipe
