#include "dataplane/sampling/token_counts.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace millrace::dataplane::sampling {
namespace {

std::map<TokenId, int> as_map(const TokenCounts& counts) {
  std::map<TokenId, int> result;
  TokenId previous = -1;
  for (const TokenCounts::Entry& entry : counts.entries()) {
    EXPECT_GT(entry.token, previous);
    previous = entry.token;
    result[entry.token] = entry.generated;
  }
  return result;
}

TEST(TokenCounts, AgreesWithAMapAndWithItselfBuiltStepByStep) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<TokenId> tokens(random() % 60);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 20);
    const int prompt_tokens = static_cast<int>(random() % (tokens.size() + 1));
    std::map<TokenId, int> expected;
    const std::span<const TokenId> all(tokens);
    TokenCounts stepwise(all.first(static_cast<std::size_t>(prompt_tokens)), prompt_tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool is_generated = i >= static_cast<std::size_t>(prompt_tokens);
      expected[tokens[i]] += is_generated ? 1 : 0;
      if (is_generated) stepwise.add_generated(tokens[i]);
    }
    EXPECT_EQ(as_map(TokenCounts(tokens, prompt_tokens)), expected);
    EXPECT_EQ(as_map(stepwise), expected);
  }
}

}  // namespace
}  // namespace millrace::dataplane::sampling
