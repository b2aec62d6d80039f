#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace::api::tokenizer {

/// Cuts text into the pieces that merges never cross: a sequence of regular expressions, each of
/// which isolates its matches inside the pieces that the one before left. A pattern never sees past
/// the edges of its piece, so look-ahead ends there too. Text that no pattern matches is kept.
///
/// Immutable after compile(); cut() may be called from several threads at once.
class PreTokenizer {
 public:
  /// `\s` and `\S` in the patterns mean Unicode's White_Space, as in the reference library.
  /// Errors: kInvalidArgument with the pattern, the offset and the reason.
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> compile(
      const std::vector<std::string>& patterns);

  ~PreTokenizer();
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;

  /// Appends the pieces in order; they point into text, which must be valid UTF-8.
  /// Errors: kInternal when the regular-expression engine gives up (its limits scale with text).
  absl::Status cut(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Compiled;
  PreTokenizer();

  std::vector<Compiled> compiled_;
};

}  // namespace millrace::api::tokenizer
