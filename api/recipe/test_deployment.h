#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/recipe/deployment.h"
#include "api/recipe/output_parser.h"
#include "api/tokenizer/tokenizer.h"
#include "common/check.h"

namespace millrace::api::recipe::test {

/// A deployment over nano's tokenizer, for tests of the adapters.
class NanoDeployment {
 public:
  NanoDeployment() {
    auto opened =
        tokenizer::Tokenizer::open(MILLRACE_SOURCE_DIR "/deploy/models/nano/tokenizer.json");
    CHECK(opened.ok());
    tokenizer_ = std::move(*opened);
    const auto control = resolve_control_tokens(*tokenizer_);
    CHECK(control.ok());
    value.model_id = "deepseek-flash";
    value.system_fingerprint = "fp-1";
    value.tokenizer = tokenizer_.get();
    value.control = *control;
    value.begin_of_sequence = *tokenizer_->control_token("<｜begin▁of▁sentence｜>");
    value.vocab_size = tokenizer_->id_bound();
  }

  TokenId control(std::string_view spelling) const { return *tokenizer_->control_token(spelling); }

  /// Tokens of a text in which control tokens may be spelled.
  std::vector<TokenId> ids(std::string_view text) const {
    return *tokenizer_->encode_with_special(text);
  }

  Deployment value;

 private:
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
};

}  // namespace millrace::api::recipe::test
