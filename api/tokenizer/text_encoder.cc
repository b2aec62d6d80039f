#include "api/tokenizer/text_encoder.h"

#include <algorithm>

#include "common/status_macros.h"

namespace millrace::api::tokenizer {

absl::StatusOr<TextEncoder> TextEncoder::create(TokenizerFile& file) {
  TextEncoder encoder;
  encoder.scanner_ = PieceScanner::for_patterns(file.split_patterns);
  if (!encoder.scanner_) {
    ASSIGN_OR_RETURN(encoder.pre_tokenizer_, PreTokenizer::compile(file.split_patterns));
  }
  encoder.linear_ = LinearBpe::create(file);
  if (encoder.linear_ == nullptr) {
    encoder.merging_ = std::make_unique<const Bpe>(file.byte_tokens, file.merges);
  }
  return encoder;
}

template <typename OnPiece>
absl::Status TextEncoder::for_each_piece(std::string_view text, const OnPiece& on_piece) const {
  if (scanner_) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = scanner_->piece_length(text, at);
      on_piece(text.substr(at, length));
      at += length;
    }
    return absl::OkStatus();
  }
  std::vector<std::string_view> pieces;
  RETURN_IF_ERROR(pre_tokenizer_->cut(text, pieces));
  for (const std::string_view piece : pieces) on_piece(piece);
  return absl::OkStatus();
}

inline TokenId* TextEncoder::encode_piece(std::string_view text, std::string_view piece,
                                          Scratch& scratch, TokenId* out) const {
  if (linear_ != nullptr) [[likely]] {
    const auto readable = static_cast<std::size_t>(text.data() + text.size() - piece.data());
    return linear_->encode(piece, readable, scratch.linear, out);
  }
  scratch.merged.clear();
  merging_->encode(piece, scratch.merged);
  return std::copy(scratch.merged.begin(), scratch.merged.end(), out);
}

absl::StatusOr<TokenId*> TextEncoder::encode(std::string_view text, TokenId* out) const {
  Scratch scratch;
  RETURN_IF_ERROR(for_each_piece(
      text, [&](std::string_view piece) { out = encode_piece(text, piece, scratch, out); }));
  return out;
}

absl::StatusOr<std::size_t> TextEncoder::count(std::string_view text) const {
  constexpr std::size_t kPieceBytes = 4096;  // that most pieces do not reach
  Scratch scratch;
  std::vector<TokenId> ids(kPieceBytes);
  std::size_t count = 0;
  RETURN_IF_ERROR(for_each_piece(text, [&](std::string_view piece) {
    if (piece.size() > ids.size()) ids.resize(piece.size());
    count += static_cast<std::size_t>(encode_piece(text, piece, scratch, ids.data()) - ids.data());
  }));
  return count;
}

}  // namespace millrace::api::tokenizer
