#include "api/recipe/prompt.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::string_view kBegin = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEnd = "<｜end▁of▁sentence｜>";
constexpr std::string_view kSystem = "<｜System｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kReminder = "<｜latest_reminder｜>";
constexpr std::string_view kThinkBegin = "<think>";
constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kPartSeparator = "\n\n";

/// Collects segments; neighbouring texts become one.
class SegmentList {
 public:
  void control(std::string_view spelling) { segments_.push_back({true, std::string(spelling)}); }

  void text(std::string_view text) {
    if (text.empty()) return;
    if (segments_.empty() || segments_.back().is_control) segments_.push_back({});
    segments_.back().text.append(text);
  }

  void parts(const Message& message) {
    for (std::size_t i = 0; i < message.parts.size(); ++i) {
      if (i > 0) text(kPartSeparator);
      text(message.parts[i]);
    }
  }

  std::vector<Segment> take() { return std::move(segments_); }

 private:
  std::vector<Segment> segments_;
};

/// Place of the last message that opens a new round: a user message, or a system message that is
/// not the first. Assistant turns before it lose their reasoning. -1 without one.
std::ptrdiff_t last_round_start(const std::vector<Message>& messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    const Role role = messages[i].role;
    if (role == Role::kUser || (role == Role::kSystem && i > 0)) {
      return static_cast<std::ptrdiff_t>(i);
    }
  }
  return -1;
}

std::string effort_text(const Conversation& conversation) {
  if (conversation.thinking == Thinking::kOff) return "";
  return str_cat("Reasoning Effort: ", conversation.reasoning_effort,
                 " (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
}

void render_assistant(const Message& message, bool has_reasoning, SegmentList& out) {
  out.control(kAssistant);
  if (has_reasoning) {
    out.control(kThinkBegin);
    out.text(message.reasoning.value_or(""));
  }
  out.control(kThinkEnd);
  out.parts(message);
  out.control(kEnd);
}

}  // namespace

std::vector<Segment> render_v41(const Conversation& conversation) {
  const std::vector<Message>& messages = conversation.messages;
  const std::ptrdiff_t round_start = last_round_start(messages);
  const std::string effort = effort_text(conversation);
  SegmentList out;
  out.control(kBegin);
  if (!effort.empty()) {
    out.control(kSystem);
    out.text(effort);
  }
  bool in_user_turn = false;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    const bool continues_user_turn = in_user_turn && message.role == Role::kUser;
    in_user_turn = message.role == Role::kUser;
    switch (message.role) {
      case Role::kSystem:
        if (i > 0 || effort.empty()) out.control(kSystem);
        out.parts(message);
        break;
      case Role::kUser:
        continues_user_turn ? out.text(kPartSeparator) : out.control(kUser);
        out.parts(message);
        break;
      case Role::kAssistant:
        render_assistant(
            message,
            conversation.thinking == Thinking::kOn && static_cast<std::ptrdiff_t>(i) > round_start,
            out);
        break;
      case Role::kLatestReminder:
        out.control(kReminder);
        out.parts(message);
        break;
    }
  }
  out.control(kAssistant);
  out.control(conversation.thinking == Thinking::kOn ? kThinkBegin : kThinkEnd);
  return out.take();
}

absl::StatusOr<std::vector<TokenId>> encode_prompt(const std::vector<Segment>& segments,
                                                   const tokenizer::Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  for (const Segment& segment : segments) {
    if (segment.is_control) {
      const std::optional<TokenId> id = tokenizer.control_token(segment.text);
      if (!id) {
        return absl::InternalError(
            str_cat("the tokenizer has no control token \"", segment.text, "\""));
      }
      ids.push_back(*id);
    } else {
      ASSIGN_OR_RETURN(const std::vector<TokenId> text_ids, tokenizer.encode_text(segment.text));
      ids.insert(ids.end(), text_ids.begin(), text_ids.end());
    }
  }
  return ids;
}

absl::StatusOr<ControlTokens> resolve_control_tokens(const tokenizer::Tokenizer& tokenizer) {
  std::string missing;
  for (std::string_view spelling :
       {kBegin, kEnd, kSystem, kUser, kAssistant, kReminder, kThinkBegin, kThinkEnd}) {
    if (tokenizer.control_token(spelling)) continue;
    missing.append(missing.empty() ? "" : ", ").append(spelling);
  }
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        str_cat("the tokenizer lacks control tokens of the V4.1 format: ", missing));
  }
  return ControlTokens{.end_of_sequence = *tokenizer.control_token(kEnd),
                       .think_begin = *tokenizer.control_token(kThinkBegin),
                       .think_end = *tokenizer.control_token(kThinkEnd)};
}

}  // namespace millrace::api::recipe
