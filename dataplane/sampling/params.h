#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/types.h"

namespace millrace::dataplane::sampling {

/// Bounds of what a request may ask for.
inline constexpr int kMaxTopLogprobs = 20;
inline constexpr int kMaxLogitBiases = 1024;
inline constexpr int kMaxStopTokens = 256;

/// How the next token is chosen and when the text ends. Absolute: nothing here changes while a
/// request runs, so any worker can go on where another stopped.
///
/// The logits go through these steps in this order: logit bias; repetition, then frequency and
/// presence penalty; greedy choice, or temperature, min-p, top-k, top-p and a draw.
struct SamplingParams {
  double temperature = 1.0;         ///< 0 = greedy
  double top_p = 1.0;               ///< 1 = off
  int top_k = 0;                    ///< 0 = off
  double min_p = 0.0;               ///< 0 = off; relative to the most likely token
  double presence_penalty = 0.0;    ///< subtracted once from every token generated so far
  double frequency_penalty = 0.0;   ///< subtracted for every time it was generated
  double repetition_penalty = 1.0;  ///< 1 = off; of tokens of the prompt and generated ones
  std::vector<std::pair<TokenId, float>> logit_bias;  ///< ascending token ids
  std::uint64_t seed = 0;
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  int max_new_tokens = 1;  ///< counted from the original prompt's end
  int min_new_tokens = 0;  ///< counted likewise; until then no token that ends the text is drawn
  bool return_logprobs = false;
  int top_logprobs = 0;  ///< how many of the most likely tokens to report, with return_logprobs

  bool is_greedy() const { return temperature == 0.0; }
  bool has_penalties() const {
    return presence_penalty != 0.0 || frequency_penalty != 0.0 || repetition_penalty != 1.0;
  }
};

/// kInvalidArgument names the first field that is impossible and its range. Token ids must lie
/// within the vocabulary.
absl::Status validate(const SamplingParams& params, int vocab_size);

}  // namespace millrace::dataplane::sampling
