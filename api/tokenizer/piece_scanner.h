#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::api::tokenizer {

/// Cuts text as DeepSeek's three split patterns do, without a regular-expression engine:
///
///     1  \p{N}{1,3}              digits, in groups from the left of each run (nano: \p{N})
///     2  [一-龥぀-ゟ゠-ヿ]+        Chinese and Japanese
///     3  words, punctuation and white space; see piece_end() in the .cc
///
/// Each pattern isolates its matches in every piece that the one before left, so 3 cuts what 2
/// isolated once more (at ・), and never sees past an edge of digits or of Chinese: to it, text
/// ends there. Reads every byte a bounded number of times.
class PieceScanner {
 public:
  /// The scanner for a file's patterns; nullopt when they are any others than these.
  static std::optional<PieceScanner> for_patterns(const std::vector<std::string>& patterns);

  /// Bytes of the piece that begins at `at`, which must be less than text.size() and itself the
  /// begin of a piece (0 is one). text must be valid UTF-8.
  std::size_t piece_length(std::string_view text, std::size_t at) const {
    return static_cast<std::size_t>(piece_end(text.data() + at, text.data() + text.size()) -
                                    (text.data() + at));
  }

  /// The first place in [from, text.size()) where text may be cut in two so that the pieces of both
  /// parts are the pieces of the whole; text.size() when there is none. from may be inside of a
  /// character.
  static std::size_t find_cut(std::string_view text, std::size_t from);

 private:
  explicit PieceScanner(int digits) : digits_(digits) {}
  const char* piece_end(const char* at, const char* end) const;

  int digits_;  // in a group, at most
};

}  // namespace millrace::api::tokenizer
