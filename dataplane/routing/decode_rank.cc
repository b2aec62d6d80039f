#include "dataplane/routing/decode_rank.h"

#include <algorithm>

namespace millrace::dataplane::routing {

DecodeTotals totals_of(std::span<const DecodeRank> ranks) {
  DecodeTotals totals;
  for (const DecodeRank& rank : ranks) {
    if (!rank.is_accepting) continue;
    ++totals.ranks;
    totals.kv_tokens += rank.kv_tokens;
    totals.free_kv_tokens += std::max<std::int64_t>(rank.free_kv_tokens, 0);
  }
  return totals;
}

double high_token_mark(std::int64_t pending_tokens, const DecodeTotals& totals) {
  if (totals.ranks == 0) return 0;
  const std::int64_t fitting = std::min(pending_tokens, totals.free_kv_tokens);
  return 1.05 * static_cast<double>(fitting + totals.kv_tokens) / static_cast<double>(totals.ranks);
}

std::optional<std::size_t> pick_decode_rank(std::int64_t request_tokens,
                                            std::int64_t pending_tokens, const DecodeTotals& totals,
                                            std::span<const DecodeRank> ranks,
                                            const DecodeLook& look) {
  const double mark = high_token_mark(pending_tokens, totals);
  std::optional<std::size_t> fewest;  // requests, among ranks below the mark
  std::optional<std::size_t> least;   // KV, among all with room
  std::size_t seen = 0;               // with room
  for (std::size_t k = 0, i = ranks.empty() ? 0 : look.first % ranks.size();
       k < ranks.size() && seen < look.most; ++k, i = i + 1 == ranks.size() ? 0 : i + 1) {
    const DecodeRank& rank = ranks[i];
    if (!rank.is_accepting || rank.free_kv_tokens < request_tokens) continue;
    ++seen;
    if (!least || rank.kv_tokens < ranks[*least].kv_tokens) least = i;
    if (static_cast<double>(rank.kv_tokens + request_tokens) > mark) continue;
    if (!fewest || rank.requests < ranks[*fewest].requests) fewest = i;
  }
  return fewest ? fewest : least;
}

}  // namespace millrace::dataplane::routing
