#include "api/recipe/prompt.h"

#include <optional>
#include <string_view>

#include "api/recipe/control_spelling.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {

namespace {

/// The segments as the tokenizer takes them: control tokens by id.
absl::StatusOr<std::vector<tokenizer::PromptPart>> prompt_parts(
    const std::vector<Segment>& segments, const tokenizer::Tokenizer& tokenizer) {
  std::vector<tokenizer::PromptPart> parts;
  parts.reserve(segments.size());
  for (const Segment& segment : segments) {
    if (!segment.is_control) {
      parts.push_back({.text = segment.text});
      continue;
    }
    const std::optional<TokenId> id = tokenizer.control_token(segment.text);
    if (!id) {
      return absl::InternalError(
          str_cat("the tokenizer has no control token \"", segment.text, "\""));
    }
    parts.push_back({.text = segment.text, .token = *id});
  }
  return parts;
}

}  // namespace

absl::StatusOr<std::vector<TokenId>> encode_prompt(const std::vector<Segment>& segments,
                                                   const tokenizer::Tokenizer& tokenizer,
                                                   tokenizer::EncodePool* pool) {
  ASSIGN_OR_RETURN(const auto parts, prompt_parts(segments, tokenizer));
  return tokenizer.encode_parts(parts, pool);
}

absl::StatusOr<std::size_t> count_prompt(const std::vector<Segment>& segments,
                                         const tokenizer::Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const auto parts, prompt_parts(segments, tokenizer));
  return tokenizer.count_parts(parts);
}

absl::StatusOr<ControlTokens> resolve_control_tokens(const tokenizer::Tokenizer& tokenizer,
                                                     PromptFormat format) {
  namespace s = spelling;
  std::vector<std::string_view> needed = {s::kBegin,    s::kEnd,        s::kUser,     s::kAssistant,
                                          s::kReminder, s::kThinkBegin, s::kThinkEnd, s::kDsml};
  if (format == PromptFormat::kV41) needed.push_back(s::kSystem);
  std::string missing;
  for (std::string_view spelling : needed) {
    if (tokenizer.control_token(spelling)) continue;
    missing.append(missing.empty() ? "" : ", ").append(spelling);
  }
  if (!missing.empty()) {
    return absl::FailedPreconditionError(str_cat("the tokenizer lacks control tokens of the ",
                                                 format == PromptFormat::kV41 ? "V4.1" : "V4",
                                                 " format: ", missing));
  }
  return ControlTokens{.end_of_sequence = *tokenizer.control_token(s::kEnd),
                       .think_begin = *tokenizer.control_token(s::kThinkBegin),
                       .think_end = *tokenizer.control_token(s::kThinkEnd),
                       .dsml = *tokenizer.control_token(s::kDsml)};
}

}  // namespace millrace::api::recipe
