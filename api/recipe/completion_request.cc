#include "api/recipe/completion_request.h"

#include <array>
#include <optional>
#include <utility>

#include "api/recipe/control_spelling.h"
#include "api/recipe/prompt.h"
#include "api/recipe/request_error.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::int64_t kMaxTopLogprobs = 20;

/// Fields that say how prompts are to be taken.
struct PromptForm {
  bool parses_special = false;
  bool is_echoed = false;
  std::optional<std::string> suffix;
};

absl::StatusOr<PromptForm> read_form(const Fields& body, const Deployment& deployment) {
  PromptForm form;
  ASSIGN_OR_RETURN(const auto parse_special, body.boolean("parse_special"));
  form.parses_special = parse_special.value_or(false);
  ASSIGN_OR_RETURN(const auto echo, body.boolean("echo"));
  form.is_echoed = echo.value_or(false);
  ASSIGN_OR_RETURN(form.suffix, body.string("suffix"));
  // Clients that have no suffix send an empty one.
  if (form.suffix && form.suffix->empty()) form.suffix.reset();
  if (!form.suffix) return form;
  if (form.parses_special) {
    return field_error("suffix", "`suffix` cannot follow a prompt with `parse_special`");
  }
  for (const std::string_view token :
       {spelling::kFimBegin, spelling::kFimHole, spelling::kFimEnd}) {
    if (deployment.tokenizer->control_token(token)) continue;
    return field_error(
        "suffix",
        str_cat("`suffix` is not supported by this model: its tokenizer has no ", token, " token"),
        "unsupported_parameter");
  }
  return form;
}

absl::StatusOr<std::vector<TokenId>> encode_prompt_text(const std::string& text,
                                                        const PromptForm& form,
                                                        const Deployment& deployment) {
  if (form.parses_special) return deployment.tokenizer->encode_with_special(text);
  std::vector<Segment> segments = {{true, std::string(spelling::kBegin)}};
  const auto control = [&](std::string_view token) {
    segments.push_back({true, std::string(token)});
  };
  if (form.suffix) control(spelling::kFimBegin);
  segments.push_back({false, text});
  if (form.suffix) {
    control(spelling::kFimHole);
    segments.push_back({false, *form.suffix});
    control(spelling::kFimEnd);
  }
  return encode_prompt(segments, *deployment.tokenizer, deployment.encode_pool);
}

absl::StatusOr<CompletionPrompt> read_prompt(const Json& value, const std::string& path,
                                             const PromptForm& form, const Deployment& deployment) {
  CompletionPrompt prompt;
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    ASSIGN_OR_RETURN(prompt.ids, encode_prompt_text(text, form, deployment));
    if (form.is_echoed) prompt.echo = text;
  } else if (value.is_array()) {
    if (form.suffix) {
      return field_error("suffix", str_cat("with a `suffix`, `", path, "` must be text"));
    }
    ASSIGN_OR_RETURN(prompt.ids, read_token_ids(value, path, deployment.vocab_size));
    if (form.is_echoed) prompt.echo = deployment.tokenizer->decode(prompt.ids);
  } else {
    return field_error(path, str_cat("`", path, "` must be a string or a list of token ids"),
                       "invalid_type");
  }
  if (prompt.ids.empty()) return field_error(path, str_cat("`", path, "` is empty"));
  return prompt;
}

absl::StatusOr<std::vector<CompletionPrompt>> read_prompts(const Fields& body,
                                                           const Deployment& deployment) {
  const Json* value = body.find("prompt");
  if (value == nullptr) {
    return field_error("prompt", "`prompt` is required", "missing_required_parameter");
  }
  ASSIGN_OR_RETURN(const PromptForm form, read_form(body, deployment));
  std::vector<CompletionPrompt> prompts;
  const bool is_batch = value->is_array() && !value->empty() && !value->front().is_number();
  if (!is_batch) {
    ASSIGN_OR_RETURN(prompts.emplace_back(), read_prompt(*value, "prompt", form, deployment));
    return prompts;
  }
  if (value->size() > kMaxPrompts) {
    return field_error(
        "prompt",
        str_cat("`prompt` may hold at most ", kMaxPrompts, " prompts, has ", value->size()),
        "array_above_max_length");
  }
  for (std::size_t i = 0; i < value->size(); ++i) {
    ASSIGN_OR_RETURN(prompts.emplace_back(),
                     read_prompt((*value)[i], str_cat("prompt[", i, "]"), form, deployment));
  }
  return prompts;
}

absl::Status read_logprobs(const Fields& body, Sampling& sampling) {
  ASSIGN_OR_RETURN(const auto logprobs, body.integer("logprobs", 0, kMaxTopLogprobs));
  sampling.return_logprobs = logprobs.has_value();
  sampling.top_logprobs = static_cast<std::uint32_t>(logprobs.value_or(0));
  return absl::OkStatus();
}

absl::Status check_counts(const Fields& body, const CompletionRequest& request) {
  const std::uint32_t n = request.sampling.choices;
  ASSIGN_OR_RETURN(const auto best_of, body.integer("best_of", 1, kMaxChoices));
  if (best_of && *best_of != n) {
    return field_error(
        "best_of", str_cat("`best_of` must equal `n`, which is ", n, ": every answer is returned"));
  }
  if (request.prompts.size() * n > kMaxCompletions) {
    return field_error("n", str_cat("`n` for each `prompt` makes ", request.prompts.size() * n,
                                    " answers; there may be at most ", kMaxCompletions));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<TokenId>> read_token_ids(const Json& list, const std::string& path,
                                                    int vocab_size) {
  std::vector<TokenId> ids;
  ids.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_number_integer() || list[i] < 0 || list[i] >= vocab_size) {
      const std::string place = str_cat(path, "[", i, "]");
      return field_error(place,
                         str_cat("`", place, "` must be a token id from 0 to ", vocab_size - 1));
    }
    ids.push_back(list[i].get<TokenId>());
  }
  return ids;
}

absl::StatusOr<CompletionRequest> parse_completion_request(std::string_view body,
                                                           const Deployment& deployment) {
  ASSIGN_OR_RETURN(const Json json, parse_body(body));
  const Fields fields(json, "");
  RETURN_IF_ERROR(check_model(fields, deployment.names()));
  RETURN_IF_ERROR(fields.refuse({"tools", "response_format"}));
  CompletionRequest request;
  ASSIGN_OR_RETURN(request.sampling, read_sampling(fields, deployment.vocab_size));
  RETURN_IF_ERROR(read_logprobs(fields, request.sampling));
  ASSIGN_OR_RETURN(request.stream, read_stream_options(fields));
  ASSIGN_OR_RETURN(const auto echo_ids, fields.boolean("echo_ids"));
  ASSIGN_OR_RETURN(const auto return_ids, fields.boolean("return_token_ids"));  // vLLM's name
  request.echo_ids = echo_ids.value_or(return_ids.value_or(false));
  ASSIGN_OR_RETURN(request.prompts, read_prompts(fields, deployment));
  RETURN_IF_ERROR(check_counts(fields, request));
  ASSIGN_OR_RETURN(const auto user, fields.string("user"));
  request.user_id = user.value_or("");
  if (request.sampling.return_logprobs && !request.prompts.front().echo.empty()) {
    return field_error("echo", "`echo` goes without `logprobs`: those of a prompt are not computed",
                       "unsupported_parameter");
  }
  return request;
}

}  // namespace millrace::api::recipe
