#include "api/recipe/chat_request.h"

#include <string>
#include <utility>

#include "api/recipe/chat_dialects.h"
#include "api/recipe/chat_messages.h"
#include "api/recipe/chat_tools.h"
#include "api/recipe/forced_choice.h"
#include "api/recipe/reasoning_effort.h"
#include "api/recipe/request_error.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::int64_t kMaxTopLogprobs = 20;

/// `thinking` wins, then `reasoning_effort`, then the deployment's default.
absl::StatusOr<ThinkingSource> read_thinking(const Fields& body, Thinking default_thinking,
                                             Conversation& conversation) {
  ThinkingSource source = ThinkingSource::kDeployment;
  conversation.thinking = default_thinking;
  ASSIGN_OR_RETURN(const bool has_effort, read_effort(body, "reasoning_effort", conversation));
  if (has_effort) source = ThinkingSource::kRequest;
  if (const Json* thinking = body.find("thinking")) {
    RETURN_IF_ERROR(body.require_object("thinking"));
    ASSIGN_OR_RETURN(const auto type, Fields(*thinking, "thinking").string("type"));
    if (type != "enabled" && type != "disabled") {
      return field_error("thinking.type", "`thinking.type` must be enabled or disabled");
    }
    conversation.thinking = type == "enabled" ? Thinking::kOn : Thinking::kOff;
    source = ThinkingSource::kRequest;
  }
  return source;
}

absl::Status read_logprobs(const Fields& body, Sampling& sampling) {
  ASSIGN_OR_RETURN(const auto logprobs, body.boolean("logprobs"));
  ASSIGN_OR_RETURN(const auto top, body.integer("top_logprobs", 0, kMaxTopLogprobs));
  sampling.return_logprobs = logprobs.value_or(false);
  if (top && !sampling.return_logprobs) {
    return field_error("top_logprobs", "`top_logprobs` needs `logprobs` to be true");
  }
  sampling.top_logprobs = static_cast<std::uint32_t>(top.value_or(0));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatRequest> parse_chat_request(std::string_view body,
                                               const ModelNames& served_model, int vocab_size,
                                               Thinking default_thinking) {
  ASSIGN_OR_RETURN(Json json, parse_body(body));
  RETURN_IF_ERROR(translate_dialects(json));
  const Fields fields(json, "");
  ChatRequest request;
  RETURN_IF_ERROR(check_model(fields, served_model));
  RETURN_IF_ERROR(fields.refuse({"functions", "function_call", "audio", "web_search_options"}));
  ImageReader images;
  ASSIGN_OR_RETURN(request.conversation.messages, read_chat_messages(fields, images));
  request.conversation.image_fields = images.take_fields();
  RETURN_IF_ERROR(read_chat_tools(fields, body, request.conversation, request.parallel_calls));
  ASSIGN_OR_RETURN(const ThinkingSource source,
                   read_thinking(fields, default_thinking, request.conversation));
  RETURN_IF_ERROR(settle_forced_choice(source, request.conversation));
  ASSIGN_OR_RETURN(request.sampling, read_sampling(fields, vocab_size));
  RETURN_IF_ERROR(read_logprobs(fields, request.sampling));
  ASSIGN_OR_RETURN(request.stream, read_stream_options(fields));
  ASSIGN_OR_RETURN(const auto return_token_ids, fields.boolean("return_token_ids"));
  request.return_token_ids = return_token_ids.value_or(false);
  ASSIGN_OR_RETURN(const auto user, fields.string("user"));
  ASSIGN_OR_RETURN(const auto safety_identifier, fields.string("safety_identifier"));
  request.user_id = safety_identifier.value_or(user.value_or(""));
  RETURN_IF_ERROR(fields.require_object("metadata"));
  return request;
}

}  // namespace millrace::api::recipe
