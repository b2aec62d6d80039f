#include "dataplane/sampling/params.h"

#include <cmath>
#include <string_view>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::dataplane::sampling {
namespace {

enum class LowerBound { kInclusive, kExclusive };

absl::Status check_range(std::string_view name, double value, double low, double high,
                         LowerBound bound = LowerBound::kInclusive) {
  const bool is_above = bound == LowerBound::kInclusive ? value >= low : value > low;
  if (std::isfinite(value) && is_above && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat(name, " is ", value, ": it must be ",
                                            bound == LowerBound::kInclusive ? "from " : "above ",
                                            low, " up to ", high));
}

absl::Status check_token(std::string_view name, TokenId token, int vocab_size) {
  if (token >= 0 && token < vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat(name, " names token ", token, ", which is outside the vocabulary of ", vocab_size));
}

}  // namespace

absl::Status validate(const SamplingParams& params, int vocab_size) {
  RETURN_IF_ERROR(check_range("temperature", params.temperature, 0, 2));
  RETURN_IF_ERROR(check_range("top_p", params.top_p, 0, 1, LowerBound::kExclusive));
  RETURN_IF_ERROR(check_range("top_k", params.top_k, 0, 1 << 30));
  RETURN_IF_ERROR(check_range("min_p", params.min_p, 0, 1));
  RETURN_IF_ERROR(check_range("presence_penalty", params.presence_penalty, -2, 2));
  RETURN_IF_ERROR(check_range("frequency_penalty", params.frequency_penalty, -2, 2));
  RETURN_IF_ERROR(
      check_range("repetition_penalty", params.repetition_penalty, 0, 10, LowerBound::kExclusive));
  RETURN_IF_ERROR(check_range("max_new_tokens", params.max_new_tokens, 1, 1 << 30));
  RETURN_IF_ERROR(check_range("min_new_tokens", params.min_new_tokens, 0, params.max_new_tokens));
  RETURN_IF_ERROR(check_range("top_logprobs", params.top_logprobs, 0, kMaxTopLogprobs));
  RETURN_IF_ERROR(check_range("number of entries of logit_bias",
                              static_cast<double>(params.logit_bias.size()), 0, kMaxLogitBiases));
  TokenId previous = -1;
  for (const auto& [token, bias] : params.logit_bias) {
    RETURN_IF_ERROR(check_token("logit_bias", token, vocab_size));
    RETURN_IF_ERROR(check_range("logit_bias", bias, -100, 100));
    if (token <= previous) {
      return absl::InvalidArgumentError("logit_bias must be in ascending order of token ids");
    }
    previous = token;
  }
  RETURN_IF_ERROR(check_range("number of stop_token_ids",
                              static_cast<double>(params.stop_token_ids.size()), 0,
                              kMaxStopTokens));
  for (const TokenId token : params.stop_token_ids) {
    RETURN_IF_ERROR(check_token("stop_token_ids", token, vocab_size));
  }
  return absl::OkStatus();
}

}  // namespace millrace::dataplane::sampling
