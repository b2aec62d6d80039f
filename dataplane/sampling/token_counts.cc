#include "dataplane/sampling/token_counts.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::dataplane::sampling {

TokenCounts::TokenCounts(std::span<const TokenId> tokens, int prompt_tokens) {
  CHECK(prompt_tokens >= 0 && static_cast<std::size_t>(prompt_tokens) <= tokens.size());
  const auto prompt = tokens.first(static_cast<std::size_t>(prompt_tokens));
  std::vector<TokenId> distinct(prompt.begin(), prompt.end());
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  entries_.reserve(distinct.size());
  for (const TokenId token : distinct) entries_.push_back({.token = token, .generated = 0});
  for (const TokenId token : tokens.subspan(prompt.size())) add_generated(token);
}

void TokenCounts::add_generated(TokenId token) {
  auto place =
      std::lower_bound(entries_.begin(), entries_.end(), token,
                       [](const Entry& entry, TokenId wanted) { return entry.token < wanted; });
  if (place == entries_.end() || place->token != token) {
    place = entries_.insert(place, {.token = token, .generated = 0});
  }
  ++place->generated;
}

}  // namespace millrace::dataplane::sampling
