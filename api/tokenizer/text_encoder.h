#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "api/tokenizer/bpe.h"
#include "api/tokenizer/linear_bpe.h"
#include "api/tokenizer/piece_scanner.h"
#include "api/tokenizer/pre_tokenizer.h"
#include "api/tokenizer/tokenizer_file.h"
#include "common/types.h"

namespace millrace::api::tokenizer {

/// Text to tokens of the base vocabulary: cuts text into pieces and encodes each. Chooses the fast
/// ways where a file allows them (PieceScanner, LinearBpe) and the general ones elsewhere
/// (PreTokenizer, Bpe). Immutable; any thread may encode.
class TextEncoder {
 public:
  /// Takes over tables of the file. kInvalidArgument for a split pattern that does not compile.
  static absl::StatusOr<TextEncoder> create(TokenizerFile& file);

  /// Writes the tokens of text, at most one for each of its bytes, and returns their end. text must
  /// be valid UTF-8. kInternal when the regular-expression engine gives up (only with patterns that
  /// PieceScanner does not know).
  absl::StatusOr<TokenId*> encode(std::string_view text, TokenId* out) const;

  /// The number of tokens, in memory that grows with the longest piece alone.
  absl::StatusOr<std::size_t> count(std::string_view text) const;

  /// Whether find_cut() of PieceScanner holds for this file.
  bool can_cut() const { return scanner_.has_value(); }

 private:
  TextEncoder() = default;

  /// Calls on_piece(piece) for each piece in order.
  template <typename OnPiece>
  absl::Status for_each_piece(std::string_view text, const OnPiece& on_piece) const;

  /// Memory that one piece leaves for the next.
  struct Scratch {
    LinearBpe::Scratch linear;
    std::vector<TokenId> merged;
  };
  TokenId* encode_piece(std::string_view text, std::string_view piece, Scratch& scratch,
                        TokenId* out) const;

  std::optional<PieceScanner> scanner_;  // or, without it:
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  std::unique_ptr<const LinearBpe> linear_;  // or, without it:
  std::unique_ptr<const Bpe> merging_;
};

}  // namespace millrace::api::tokenizer
