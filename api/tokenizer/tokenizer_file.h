#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "api/tokenizer/huge_vector.h"
#include "api/tokenizer/token_bytes.h"
#include "api/tokenizer/token_index.h"
#include "common/types.h"

namespace millrace::api::tokenizer {

/// A token outside the base vocabulary; it is matched in raw text before anything else.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;     ///< dropped by decoders that skip special tokens
  bool normalized = false;  ///< matched in the second pass, over what the first left
};

/// One merge: the ids of both halves and of their union. Its rank is its place in the list.
struct Merge {
  TokenId left = 0;
  TokenId right = 0;
  TokenId result = 0;
};

/// What a Hugging Face `tokenizer.json` of the byte-level BPE family says.
struct TokenizerFile {
  std::vector<std::string> split_patterns;  ///< regular expressions, applied one after another
  TokenBytes token_bytes;                   ///< by id; empty for ids that are not in the vocabulary
  TokenIndex byte_level_tokens;             ///< of the base vocabulary
  std::array<TokenId, 256> byte_tokens{};   ///< the token of each single byte
  HugeVector<Merge> merges;                 ///< by rank
  std::vector<AddedToken> added_tokens;     ///< in the order of the file
};

/// Reads the text of a `tokenizer.json` of at most 1 GB.
///
/// Whatever the file asks for and we do not do (another model type, a normalizer, dropout, prefix
/// spaces, other split behaviours, stripping added tokens) is refused by name; nothing is ignored
/// that could change an id. Keys and tokens that are given twice are refused. Errors:
/// kInvalidArgument naming the key and its value.
absl::StatusOr<TokenizerFile> parse_tokenizer_file(std::string_view json);

/// The same for a file. Also kNotFound, kPermissionDenied and what else opening one gives.
absl::StatusOr<TokenizerFile> read_tokenizer_file(const std::string& path);

}  // namespace millrace::api::tokenizer
