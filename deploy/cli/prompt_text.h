#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "api/tokenizer/tokenizer.h"
#include "common/types.h"

namespace millrace::deploy::cli {

/// Made-up English of an exact number of tokens, for loads whose real texts are not public.
class PromptText {
 public:
  /// Reads tokenizer.json of the served model's folder.
  static absl::StatusOr<PromptText> open(const std::string& model_dir);

  /// `count` token ids of ordinary text; equal arguments give equal ids. Any thread.
  absl::StatusOr<std::vector<TokenId>> token_ids(std::uint64_t seed, int count) const;

 private:
  explicit PromptText(std::shared_ptr<const api::tokenizer::Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {}
  std::shared_ptr<const api::tokenizer::Tokenizer> tokenizer_;
};

/// `words` words in sentences; equal arguments give equal text.
std::string made_up_text(std::uint64_t seed, int words);

}  // namespace millrace::deploy::cli
