#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/deployment.h"
#include "api/recipe/fields.h"
#include "common/json_fwd.h"
#include "common/types.h"

namespace millrace::api::recipe {

/// Prompts of one request, and answers to all of them.
inline constexpr std::size_t kMaxPrompts = 64;
inline constexpr std::size_t kMaxCompletions = 128;

/// A prompt of a Completions request.
struct CompletionPrompt {
  std::vector<TokenId> ids;
  std::string echo;  ///< what every answer to it begins with; empty unless asked for
};

/// A decoded Completions request.
struct CompletionRequest {
  std::vector<CompletionPrompt> prompts;  ///< at least one
  Sampling sampling;
  StreamOptions stream;
  bool echo_ids = false;
  std::string user_id;  ///< `user`: whom the caller serves
};

/// Decodes and validates a body.
///
/// A prompt that is text is encoded with the base vocabulary behind the begin-of-sequence token;
/// with `parse_special` it is taken as a rendered prompt, in which spellings of control tokens
/// count and before which nothing is put. With a `suffix` that is not empty, the answer is what
/// belongs between the two: both texts stand between the tokenizer's fill-in-the-middle tokens.
///
/// Errors: kInvalidArgument, kNotFound (model), with the field's name.
absl::StatusOr<CompletionRequest> parse_completion_request(std::string_view body,
                                                           const Deployment& deployment);

/// A list of token ids whose path is `path`. Errors as above.
absl::StatusOr<std::vector<TokenId>> read_token_ids(const Json& list, const std::string& path,
                                                    int vocab_size);

}  // namespace millrace::api::recipe
