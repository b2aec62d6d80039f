#include "dataplane/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/philox.h"
#include "common/str_cat.h"

namespace millrace::dataplane::sampling {
namespace {

/// Orders token ids by descending value, equal values by ascending id.
template <typename Value>
struct MoreLikely {
  std::span<const Value> values;
  bool operator()(TokenId a, TokenId b) const {
    const Value va = values[static_cast<std::size_t>(a)];
    const Value vb = values[static_cast<std::size_t>(b)];
    return va != vb ? va > vb : a < b;
  }
};

/// Checks the logits and returns the highest.
absl::StatusOr<float> checked_maximum(std::span<const float> logits) {
  float maximum = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
      return absl::InternalError(str_cat("the model's logit of token ", i, " is ", logits[i]));
    }
    maximum = std::max(maximum, logits[i]);
  }
  if (std::isinf(maximum)) return absl::InternalError("the model's logits are all -infinity");
  return maximum;
}

void apply_bias_and_penalties(const SamplingParams& params, const TokenCounts& counts,
                              std::span<double> scores) {
  for (const auto& [token, bias] : params.logit_bias) {
    scores[static_cast<std::size_t>(token)] += static_cast<double>(bias);
  }
  if (!params.has_penalties()) return;
  for (const TokenCounts::Entry& entry : counts.entries()) {
    double& score = scores[static_cast<std::size_t>(entry.token)];
    score = score > 0 ? score / params.repetition_penalty : score * params.repetition_penalty;
    if (entry.generated > 0) {
      score -= params.frequency_penalty * entry.generated + params.presence_penalty;
    }
  }
}

TokenId most_likely(std::span<const double> scores) {
  return static_cast<TokenId>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

/// Sets the weights of tokens outside the filters to zero. `order` is scratch.
void filter(const SamplingParams& params, std::span<double> weights, std::vector<TokenId>& order) {
  const bool has_top_k =
      params.top_k > 0 && static_cast<std::size_t>(params.top_k) < weights.size();
  const bool has_top_p = params.top_p < 1.0;
  if (params.min_p > 0) {
    for (double& weight : weights) {
      if (weight < params.min_p) weight = 0;  // the most likely token weighs 1
    }
  }
  if (!has_top_k && !has_top_p) return;

  order.clear();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0) order.push_back(static_cast<TokenId>(i));
  }
  const MoreLikely<double> more_likely{weights};
  const auto drop_from = [&](std::vector<TokenId>::iterator first) {
    for (auto it = first; it != order.end(); ++it) weights[static_cast<std::size_t>(*it)] = 0;
    order.erase(first, order.end());
  };
  if (has_top_k && static_cast<std::size_t>(params.top_k) < order.size()) {
    const auto kept_end = order.begin() + params.top_k;
    std::nth_element(order.begin(), kept_end, order.end(), more_likely);
    drop_from(kept_end);
  }
  if (!has_top_p) return;
  std::sort(order.begin(), order.end());
  double total = 0;
  for (const TokenId token : order) total += weights[static_cast<std::size_t>(token)];
  // A heap gives the most likely tokens one by one: few are needed as a rule, so this beats sorting
  // the whole vocabulary.
  const auto less_likely = [&](TokenId a, TokenId b) { return more_likely(b, a); };
  auto heap_end = order.end();
  std::make_heap(order.begin(), heap_end, less_likely);
  double kept = 0;
  while (heap_end != order.begin() && kept < params.top_p * total) {
    std::pop_heap(order.begin(), heap_end, less_likely);
    --heap_end;
    kept += weights[static_cast<std::size_t>(*heap_end)];
  }
  for (auto it = order.begin(); it != heap_end; ++it) weights[static_cast<std::size_t>(*it)] = 0;
}

/// The token whose interval of the cumulated weights, in ascending order of ids, holds u in [0, 1).
TokenId draw(std::span<const double> weights, double u) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double target = u * total;
  double cumulated = 0;
  TokenId last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    last = static_cast<TokenId>(i);
    cumulated += weights[i];
    if (cumulated > target) return last;
  }
  return last;  // u * total rounded up to total
}

void fill_logprobs(std::span<const float> logits, float maximum, int top_count, Sample& sample,
                   std::vector<TokenId>& order) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - maximum);
  const double log_sum = std::log(sum) + maximum;
  const auto logprob = [&](TokenId token) {
    return static_cast<float>(logits[static_cast<std::size_t>(token)] - log_sum);
  };
  sample.logprob = logprob(sample.token);
  if (top_count <= 0) return;
  order.resize(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto top_end = order.begin() + std::min<std::ptrdiff_t>(top_count, std::ssize(order));
  std::partial_sort(order.begin(), top_end, order.end(), MoreLikely<float>{logits});
  for (auto it = order.begin(); it != top_end; ++it) sample.top.push_back({*it, logprob(*it)});
}

}  // namespace

absl::StatusOr<Sample> sample(std::span<const float> logits, const SamplingParams& params,
                              const TokenCounts& counts, std::uint64_t position,
                              SamplerScratch& scratch, std::span<const TokenId> forbidden) {
  const absl::StatusOr<float> maximum = checked_maximum(logits);
  if (!maximum.ok()) return maximum.status();

  scratch.scores.assign(logits.begin(), logits.end());
  apply_bias_and_penalties(params, counts, scratch.scores);
  for (const TokenId token : forbidden) {
    scratch.scores[static_cast<std::size_t>(token)] = -std::numeric_limits<double>::infinity();
  }
  const TokenId best = most_likely(scratch.scores);

  Sample result;
  if (params.is_greedy()) {
    result.token = best;
  } else {
    const double best_score = scratch.scores[static_cast<std::size_t>(best)];
    scratch.weights.resize(scratch.scores.size());
    for (std::size_t i = 0; i < scratch.scores.size(); ++i) {
      scratch.weights[i] = std::exp((scratch.scores[i] - best_score) / params.temperature);
    }
    filter(params, scratch.weights, scratch.order);
    result.token =
        draw(scratch.weights,
             uniform_at(params.seed, position, static_cast<std::uint32_t>(DrawPurpose::kToken)));
  }
  if (params.return_logprobs) {
    fill_logprobs(logits, *maximum, params.top_logprobs, result, scratch.order);
  }
  return result;
}

}  // namespace millrace::dataplane::sampling
