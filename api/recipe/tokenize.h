#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "api/recipe/deployment.h"

namespace millrace::api::recipe {

/// Bodies of answers, in the shape of vLLM. `model` may be left out. Pure; safe on any thread.
/// Errors: kInvalidArgument, kNotFound (model), with the field's name.

/// POST /tokenize, of a `prompt` (text, as /v1/completions takes it; without its begin-of-sequence
/// token when `add_special_tokens` is false) or of `messages` and `tools` (as
/// /v1/chat/completions takes them): {"count", "max_model_len", "tokens", "token_strs"}.
/// `token_strs` is null unless `return_token_strs` is true; they are spelled as in the tokenizer's
/// file, where every byte is a printable character.
absl::StatusOr<std::string> tokenize(std::string_view body, const Deployment& deployment,
                                     int max_model_len);

/// POST /detokenize, of `tokens`: {"prompt"}.
absl::StatusOr<std::string> detokenize(std::string_view body, const Deployment& deployment);

}  // namespace millrace::api::recipe
