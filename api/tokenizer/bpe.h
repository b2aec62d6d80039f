#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "api/tokenizer/tokenizer_file.h"
#include "common/types.h"

namespace millrace::api::tokenizer {

/// Byte-pair encoding of single pieces: the lowest-ranked pair merges first, of equal ones the
/// leftmost. O(n log n) in the bytes of a piece. Immutable; any thread may encode.
class Bpe {
 public:
  Bpe(const std::array<TokenId, 256>& byte_tokens, std::span<const Merge> merges);

  /// Appends the tokens of one piece.
  void encode(std::string_view piece, std::vector<TokenId>& ids) const;

 private:
  struct Rule {
    std::int32_t rank = 0;
    TokenId result = 0;
  };
  const Rule* find(TokenId left, TokenId right) const;

  std::array<TokenId, 256> byte_tokens_;
  std::unordered_map<std::uint64_t, Rule> rules_;  // by pair of token ids
};

}  // namespace millrace::api::tokenizer
