#include "api/python/answer.h"

#include "api/recipe/request_error.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::python {
namespace {

absl::Status check_id(TokenId id, std::string_view name, std::size_t index, TokenId id_bound) {
  if (id >= 0 && id < id_bound) return absl::OkStatus();
  return recipe::field_error(str_cat(name, "[", index, "]"),
                             str_cat("`", name, "[", index, "]` must be a token id from 0 to ",
                                     id_bound - 1, ", not ", id));
}

absl::Status check_length(std::size_t length, std::string_view name, std::size_t ids) {
  if (length == 0 || length == ids) return absl::OkStatus();
  return recipe::field_error(
      name, str_cat("`", name, "` must have one entry for each of the ", ids, " ids, or none"));
}

}  // namespace

absl::StatusOr<std::vector<recipe::GeneratedToken>> generated(const Tokens& tokens,
                                                              const tokenizer::Tokenizer& known) {
  RETURN_IF_ERROR(check_length(tokens.logprobs.size(), "logprobs", tokens.ids.size()));
  RETURN_IF_ERROR(check_length(tokens.top_logprobs.size(), "top_logprobs", tokens.ids.size()));
  std::vector<recipe::GeneratedToken> result;
  result.reserve(tokens.ids.size());
  for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
    RETURN_IF_ERROR(check_id(tokens.ids[i], "ids", i, known.id_bound()));
    recipe::GeneratedToken& token = result.emplace_back();
    token.id = tokens.ids[i];
    if (!tokens.logprobs.empty()) token.logprob = tokens.logprobs[i];
    if (!tokens.top_logprobs.empty()) token.top = tokens.top_logprobs[i];
    for (const auto& [id, logprob] : token.top) {
      RETURN_IF_ERROR(check_id(id, "top_logprobs", i, known.id_bound()));
    }
  }
  return result;
}

absl::StatusOr<std::unique_ptr<Answer>> Answer::open(
    SharedTokenizer tokenizer, std::unique_ptr<const recipe::Deployment> deployment,
    recipe::PreparedRequest prepared) {
  std::vector<TokenId> prompt_ids = prepared.prompt;
  const bool is_streamed = prepared.is_streamed;
  ASSIGN_OR_RETURN(recipe::AnswerWriter writer,
                   recipe::AnswerWriter::open(std::move(prepared), *deployment));
  return std::unique_ptr<Answer>(new Answer(std::move(tokenizer), std::move(deployment),
                                            std::move(prompt_ids), is_streamed, std::move(writer)));
}

}  // namespace millrace::api::python
