#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "api/recipe/answer_writer.h"
#include "api/recipe/deployment.h"
#include "api/recipe/output_parser.h"
#include "api/recipe/prepared_request.h"
#include "api/tokenizer/tokenizer.h"

namespace millrace::api::python {

/// Shared, because every Python object made with a tokenizer may outlive the others.
using SharedTokenizer = std::shared_ptr<const tokenizer::Tokenizer>;

/// What an engine tells of the tokens it sampled: ids, and nothing or one entry for each.
struct Tokens {
  std::vector<TokenId> ids;
  std::vector<float> logprobs;
  std::vector<std::vector<std::pair<TokenId, float>>> top_logprobs;
};

/// Checks and puts together; kInvalidArgument names ids, logprobs or top_logprobs.
absl::StatusOr<std::vector<recipe::GeneratedToken>> generated(const Tokens& tokens,
                                                              const tokenizer::Tokenizer& known);

/// The answer to one request of a protocol.
class Answer {
 public:
  static absl::StatusOr<std::unique_ptr<Answer>> open(
      SharedTokenizer tokenizer, std::unique_ptr<const recipe::Deployment> deployment,
      recipe::PreparedRequest prepared);

  const std::vector<TokenId>& prompt_ids() const { return prompt_ids_; }
  bool is_streamed() const { return is_streamed_; }
  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }
  recipe::AnswerWriter& writer() { return writer_; }

 private:
  Answer(SharedTokenizer tokenizer, std::unique_ptr<const recipe::Deployment> deployment,
         std::vector<TokenId> prompt_ids, bool is_streamed, recipe::AnswerWriter writer)
      : tokenizer_(std::move(tokenizer)),
        deployment_(std::move(deployment)),
        prompt_ids_(std::move(prompt_ids)),
        is_streamed_(is_streamed),
        writer_(std::move(writer)) {}

  SharedTokenizer tokenizer_;
  std::unique_ptr<const recipe::Deployment> deployment_;  // the writer points to it
  std::vector<TokenId> prompt_ids_;
  bool is_streamed_;
  recipe::AnswerWriter writer_;
};

/// An output parser that keeps its tokenizer.
class Parser {
 public:
  Parser(SharedTokenizer tokenizer, const recipe::ControlTokens& control,
         recipe::ParseOptions options)
      : tokenizer_(std::move(tokenizer)), parser_(*tokenizer_, control, std::move(options)) {}

  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }
  recipe::OutputParser& parser() { return parser_; }

 private:
  SharedTokenizer tokenizer_;
  recipe::OutputParser parser_;
};

}  // namespace millrace::api::python
