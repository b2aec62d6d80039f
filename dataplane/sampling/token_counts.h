#pragma once

#include <span>
#include <vector>

#include "common/types.h"

namespace millrace::dataplane::sampling {

/// How often each token occurs in a request so far, for the penalties.
class TokenCounts {
 public:
  struct Entry {
    TokenId token = 0;
    int generated = 0;  ///< times generated; 0: in the prompt only
  };

  TokenCounts() = default;
  /// tokens = the prompt, then what was generated; the prompt has prompt_tokens tokens.
  TokenCounts(std::span<const TokenId> tokens, int prompt_tokens);

  /// One more generated token.
  void add_generated(TokenId token);

  /// Every token that occurs, once, in ascending order of ids.
  std::span<const Entry> entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

}  // namespace millrace::dataplane::sampling
