#include "dataplane/routing/decode_rank.h"

#include <algorithm>

namespace millrace::dataplane::routing {

namespace {

void count(const DecodeRank& rank, std::int64_t sign, DecodeTotals& totals) {
  if (!rank.is_accepting) return;
  totals.ranks += sign;
  totals.kv_tokens += sign * rank.kv_tokens;
  totals.free_kv_tokens += sign * std::max<std::int64_t>(rank.free_kv_tokens, 0);
}

/// The rule of pick_decode_rank() among the ranks that are `eligible`.
template <typename Eligible>
std::optional<std::size_t> pick(std::int64_t tokens, double mark, std::span<const DecodeRank> ranks,
                                const DecodeLook& look, Eligible eligible) {
  std::optional<std::size_t> fewest;  // requests, among ranks below the mark
  std::optional<std::size_t> least;   // KV, among all
  std::size_t seen = 0;
  for (std::size_t k = 0, i = ranks.empty() ? 0 : look.first % ranks.size();
       k < ranks.size() && seen < look.most; ++k, i = i + 1 == ranks.size() ? 0 : i + 1) {
    const DecodeRank& rank = ranks[i];
    if (!rank.is_accepting || !eligible(rank)) continue;
    ++seen;
    if (!least || rank.kv_tokens < ranks[*least].kv_tokens) least = i;
    if (static_cast<double>(rank.kv_tokens + tokens) > mark) continue;
    if (!fewest || rank.requests < ranks[*fewest].requests) fewest = i;
  }
  return fewest ? fewest : least;
}

}  // namespace

DecodeTotals totals_of(std::span<const DecodeRank> ranks) {
  DecodeTotals totals;
  for (const DecodeRank& rank : ranks) count(rank, 1, totals);
  return totals;
}

double high_token_mark(std::int64_t pending_tokens, const DecodeTotals& totals) {
  if (totals.ranks == 0) return 0;
  const std::int64_t fitting = std::min(pending_tokens, totals.free_kv_tokens);
  return 1.05 * static_cast<double>(fitting + totals.kv_tokens) / static_cast<double>(totals.ranks);
}

std::optional<std::size_t> pick_decode_rank(const DecodeNeed& need, std::int64_t pending_tokens,
                                            const DecodeTotals& totals,
                                            std::span<const DecodeRank> ranks,
                                            const DecodeLook& look) {
  return pick(need.tokens, high_token_mark(pending_tokens, totals), ranks, look,
              [&](const DecodeRank& rank) { return rank.free_kv_tokens >= need.room_tokens; });
}

std::optional<std::size_t> pick_decode_rank_to_wait(const DecodeNeed& need,
                                                    std::int64_t pending_tokens,
                                                    const DecodeTotals& totals,
                                                    std::span<const DecodeRank> ranks,
                                                    const DecodeLook& look) {
  return pick(need.tokens, high_token_mark(pending_tokens, totals), ranks, look,
              [&](const DecodeRank& rank) { return rank.capacity_kv_tokens >= need.room_tokens; });
}

void DecodeBoard::set(std::size_t index, const DecodeRank& rank) {
  if (index >= ranks_.size()) ranks_.resize(index + 1, {.is_accepting = false});
  count(ranks_[index], -1, totals_);
  ranks_[index] = rank;
  count(rank, 1, totals_);
}

}  // namespace millrace::dataplane::routing
