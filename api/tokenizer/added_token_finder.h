#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/tokenizer/byte_trie.h"
#include "api/tokenizer/prompt_part.h"
#include "api/tokenizer/tokenizer_file.h"

namespace millrace::api::tokenizer {

/// Finds the spellings of added tokens in text, leftmost and of these the longest. The reference
/// library looks for tokens that are not normalized in the whole text first, then for the others in
/// what is left. Immutable.
class AddedTokenFinder {
 public:
  /// Each spelling must be there once, none empty.
  explicit AddedTokenFinder(std::span<const AddedToken> tokens);

  /// The text as tokens and the texts between them, in order. The texts are views of it.
  std::vector<PromptPart> split(std::string_view text) const;

 private:
  struct Pass {
    ByteTrie spellings;
    std::string firsts;  // the bytes that spellings begin with, each once
  };
  static void split_at(std::string_view text, const Pass& pass, std::vector<PromptPart>& parts);

  std::array<Pass, 2> passes_;
};

}  // namespace millrace::api::tokenizer
