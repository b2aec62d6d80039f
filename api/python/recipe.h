#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "api/python/answer.h"
#include "api/recipe/deployment.h"
#include "api/recipe/prompt.h"
#include "api/recipe/protocols.h"
#include "api/recipe/settings.h"
#include "api/tokenizer/tokenizer.h"

namespace millrace::api::python {

/// A rendered prompt and the tokenizer that encodes it.
class Prompt {
 public:
  Prompt(SharedTokenizer tokenizer, recipe::RenderedPrompt rendered)
      : tokenizer_(std::move(tokenizer)), rendered_(std::move(rendered)) {}

  std::string text() const;
  const std::vector<recipe::Segment>& segments() const { return rendered_.segments; }
  recipe::Stage stage() const { return rendered_.stage; }
  const std::vector<std::string>& images() const { return rendered_.images; }
  absl::StatusOr<std::vector<TokenId>> encode() const;
  absl::StatusOr<std::size_t> count() const;

 private:
  SharedTokenizer tokenizer_;
  recipe::RenderedPrompt rendered_;
};

/// The rules of one model: how requests become prompts and outputs become answers. Immutable.
class Recipe {
 public:
  /// Without a name of the model, it is called whatever a request calls it.
  static absl::StatusOr<Recipe> open(SharedTokenizer tokenizer, const recipe::Settings& settings,
                                     std::optional<std::string> model, std::string fingerprint);

  /// JSON texts: a request's conversation and what else it asks for.
  absl::StatusOr<std::string> convert(const std::string& protocol, const std::string& body) const;
  absl::StatusOr<Prompt> render(const std::string& protocol, const std::string& body) const;
  /// Of a conversation as JSON (api/recipe/conversation_json.h).
  absl::StatusOr<Prompt> render_conversation(const std::string& json) const;
  absl::StatusOr<std::unique_ptr<Answer>> prepare(const std::string& protocol,
                                                  const std::string& body, const std::string& id,
                                                  std::int64_t created) const;
  /// A parser of outputs outside of any protocol. Stage, stops, markup and calls are those of
  /// `options`, the choices where sources disagree the recipe's.
  std::unique_ptr<Parser> parser(recipe::ParseOptions options) const;

 private:
  Recipe() = default;
  absl::StatusOr<recipe::DecodedRequest> decode(const std::string& protocol,
                                                const std::string& body) const;
  absl::StatusOr<Prompt> render(const recipe::Conversation& conversation) const;
  recipe::Deployment deployment_for(const std::string& body) const;

  SharedTokenizer tokenizer_;
  recipe::Deployment deployment_;
  bool has_model_ = false;
};

}  // namespace millrace::api::python
