#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types.h"
#include "dataplane/sampling/params.h"
#include "dataplane/sampling/token_counts.h"

namespace millrace::dataplane::sampling {

/// What a random number is drawn for; part of its counter, so that draws never share numbers.
enum class DrawPurpose : std::uint32_t { kToken = 0 };

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;  ///< natural logarithm
};

/// A chosen token. Log probabilities are those of the model's own distribution: before bias,
/// penalties, temperature and filters.
struct Sample {
  TokenId token = 0;
  float logprob = 0;              ///< filled with return_logprobs, else 0
  std::vector<TokenLogprob> top;  ///< the top_logprobs most likely ones, descending
};

/// Buffers that live from call to call, so that sampling allocates nothing. One per thread.
struct SamplerScratch {
  std::vector<double> scores;
  std::vector<double> weights;
  std::vector<TokenId> order;
};

/// Chooses the token at absolute position `position` from the logits of the row before it.
///
/// logits [vocab_size]. The draw is uniform_at(seed, position, DrawPurpose::kToken), so the same
/// inputs give the same token on every worker; sums run in ascending order of token ids. Between
/// equal values the lower id is the more likely one everywhere: greedy choice, filters, top
/// logprobs.
///
/// min-p keeps tokens at least min_p times as likely as the most likely one, top-k the k most
/// likely of these, top-p the smallest set of the most likely of these that holds the share top_p
/// of what is left. The most likely token is always kept.
///
/// Tokens in `forbidden` are never chosen; they must leave one that is not.
///
/// params must be valid (validate()). kInternal when a logit is NaN or +infinity, or all are
/// -infinity: a broken checkpoint.
absl::StatusOr<Sample> sample(std::span<const float> logits, const SamplingParams& params,
                              const TokenCounts& counts, std::uint64_t position,
                              SamplerScratch& scratch, std::span<const TokenId> forbidden = {});

}  // namespace millrace::dataplane::sampling
