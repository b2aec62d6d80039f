#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "api/tokenizer/encode_pool.h"
#include "api/tokenizer/prompt_part.h"
#include "api/tokenizer/token_bytes.h"
#include "common/types.h"

namespace millrace::api::tokenizer {

struct TokenizerFile;

/// A Hugging Face `tokenizer.json` of the byte-level BPE family.
///
/// Boundary rule: encode_text() knows the base vocabulary only, so text that came from a request
/// can never become a control token; control tokens are placed by id, by whoever renders a prompt.
/// Immutable; any number of threads may use one tokenizer.
class Tokenizer {
 public:
  /// Errors: kNotFound (no such file), kInvalidArgument (the file asks for something that is not
  /// supported, or contradicts itself; the message names the key).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> open(const std::string& path);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> from_json(std::string_view json);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Each of the encoders below shares its work with the pool's threads when it is given a pool and
  // the text is long enough to gain from that; the ids do not depend on it. Time is linear in the
  // text, whatever it is.

  /// Tokens of text by the base vocabulary alone. Text must be encoded whole between two control
  /// tokens: a cut changes ids. kInvalidArgument names the offset of invalid UTF-8.
  absl::StatusOr<std::vector<TokenId>> encode_text(std::string_view text,
                                                   EncodePool* pool = nullptr) const;

  /// Tokens of a text in which spellings of added tokens stand for these tokens (longest first,
  /// leftmost): for raw prompts that someone rendered himself. Never for request text in a chat.
  absl::StatusOr<std::vector<TokenId>> encode_with_special(std::string_view text,
                                                           EncodePool* pool = nullptr) const;

  /// Tokens of a prompt, each text by the base vocabulary alone.
  absl::StatusOr<std::vector<TokenId>> encode_parts(std::span<const PromptPart> parts,
                                                    EncodePool* pool = nullptr) const;

  /// How many tokens encode_text() and encode_parts() would give, without keeping them.
  absl::StatusOr<std::size_t> count_text(std::string_view text) const;
  absl::StatusOr<std::size_t> count_parts(std::span<const PromptPart> parts) const;

  /// The id of an added token by its exact spelling.
  std::optional<TokenId> control_token(std::string_view spelling) const;

  /// The bytes a token stands for; empty for an id without a token (the embedding may have more
  /// rows than the vocabulary). Negative or too large ids are empty as well.
  std::string_view token_bytes(TokenId id) const { return token_bytes_.of(id); }

  /// One past the highest id that has a token.
  TokenId id_bound() const { return token_bytes_.id_bound(); }

  /// Concatenated bytes of tokens, as valid UTF-8 (see Utf8Stream).
  std::string decode(std::span<const TokenId> ids) const;

 private:
  struct Tables;
  static absl::StatusOr<std::unique_ptr<Tokenizer>> from_file(TokenizerFile file);
  explicit Tokenizer(std::unique_ptr<const Tables> tables);
  absl::StatusOr<TokenId*> write_parts(std::span<const PromptPart> parts, TokenId* out) const;
  absl::StatusOr<std::vector<TokenId>> encode_checked(std::span<const PromptPart> parts,
                                                      EncodePool* pool) const;

  std::unique_ptr<const Tables> tables_;
  const TokenBytes& token_bytes_;  // of the tables; asked for every token that a model writes
};

}  // namespace millrace::api::tokenizer
