#include "api/recipe/messages_request.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "api/recipe/forced_choice.h"
#include "api/recipe/messages_history.h"
#include "api/recipe/messages_tools.h"
#include "api/recipe/request_error.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();

absl::Status read_effort(const Fields& body, Conversation& conversation, ThinkingSource& source) {
  RETURN_IF_ERROR(body.require_object("output_config"));
  const Json* config = body.find("output_config");
  if (config == nullptr) return absl::OkStatus();
  const Fields fields(*config, "output_config");
  RETURN_IF_ERROR(fields.refuse({"format"}));  // a schema for the answer
  ASSIGN_OR_RETURN(const auto effort, fields.string("effort"));
  if (!effort) return absl::OkStatus();
  if (effort == "low") {
    conversation.effort.name = Effort::Name::kLow;
  } else if (effort == "medium" || effort == "high") {
    conversation.effort.name = Effort::Name::kHigh;
  } else if (effort == "xhigh") {
    conversation.effort.name = Effort::Name::kXhigh;
  } else if (effort == "max") {
    conversation.effort.name = Effort::Name::kMax;
  } else {
    return field_error("output_config.effort",
                       "output_config.effort: must be low, medium, high, xhigh or max");
  }
  conversation.thinking = Thinking::kOn;
  source = ThinkingSource::kRequest;
  return absl::OkStatus();
}

/// `thinking` wins over the effort, which then counts only where there is thinking; both win over
/// the deployment's default. A token budget for thinking is accepted and has no effect.
absl::StatusOr<ThinkingSource> read_thinking(const Fields& body, Thinking default_thinking,
                                             Conversation& conversation) {
  ThinkingSource source = ThinkingSource::kDeployment;
  conversation.thinking = default_thinking;
  RETURN_IF_ERROR(read_effort(body, conversation, source));
  RETURN_IF_ERROR(body.require_object("thinking"));
  const Json* thinking = body.find("thinking");
  if (thinking == nullptr) return source;
  const Fields fields(*thinking, "thinking");
  ASSIGN_OR_RETURN(const auto type, fields.string("type"));
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    return field_error("thinking.type", "thinking.type: must be enabled, disabled or adaptive");
  }
  ASSIGN_OR_RETURN([[maybe_unused]] const auto budget,
                   fields.integer("budget_tokens", 0, kMaxCount));
  conversation.thinking = type == "disabled" ? Thinking::kOff : Thinking::kOn;
  return ThinkingSource::kRequest;
}

absl::Status read_stops(const Fields& body, Sampling& sampling) {
  const Json* list = body.find("stop_sequences");
  if (list == nullptr) return absl::OkStatus();
  if (!list->is_array() || list->size() > kMaxStops) {
    return field_error("stop_sequences", str_cat("stop_sequences: must be a list of at most ",
                                                 kMaxStops, " strings"));
  }
  for (const Json& stop : *list) {
    if (!stop.is_string() || stop.get<std::string>().empty() ||
        stop.get<std::string>().size() > kMaxStopBytes) {
      return field_error("stop_sequences", str_cat("stop_sequences: each must be a string of 1 to ",
                                                   kMaxStopBytes, " bytes"));
    }
    sampling.stop.push_back(stop.get<std::string>());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> read_user_id(const Fields& body) {
  RETURN_IF_ERROR(body.require_object("metadata"));
  const Json* metadata = body.find("metadata");
  if (metadata == nullptr) return std::string();
  ASSIGN_OR_RETURN(const auto user_id, Fields(*metadata, "metadata").string("user_id"));
  return user_id.value_or("");
}

absl::Status read_messages_sampling(const Fields& body, MaxTokens max_tokens, Sampling& sampling) {
  ASSIGN_OR_RETURN(const auto limit, body.integer("max_tokens", 1, kMaxCount));
  if (limit) sampling.max_tokens = static_cast<std::uint32_t>(*limit);
  if (!limit && max_tokens == MaxTokens::kRequired) {
    return field_error("max_tokens", "max_tokens: Field required", "missing_required_parameter");
  }
  ASSIGN_OR_RETURN(const auto temperature, body.number("temperature", 0, 2));
  sampling.temperature = temperature.value_or(sampling.temperature);
  ASSIGN_OR_RETURN(const auto top_p, body.number("top_p", 0, 1));
  sampling.top_p = top_p.value_or(sampling.top_p);
  if (sampling.top_p == 0) return field_error("top_p", "top_p: must be greater than 0");
  ASSIGN_OR_RETURN(const auto top_k, body.integer("top_k", 0, kMaxCount));
  sampling.top_k = static_cast<std::uint32_t>(top_k.value_or(0));
  return read_stops(body, sampling);
}

}  // namespace

absl::StatusOr<MessagesRequest> parse_messages_request(std::string_view body,
                                                       const ModelNames& served_model,
                                                       Thinking default_thinking,
                                                       MaxTokens max_tokens) {
  ASSIGN_OR_RETURN(const Json json, parse_body(body));
  const Fields fields(json, "");
  MessagesRequest request;
  RETURN_IF_ERROR(check_model(fields, served_model));
  RETURN_IF_ERROR(fields.refuse({"output_format", "mcp_servers", "container"}));
  RETURN_IF_ERROR(read_messages_sampling(fields, max_tokens, request.sampling));
  ImageReader images;
  ASSIGN_OR_RETURN(request.conversation.messages, read_messages_history(fields, body, images));
  request.conversation.image_fields = images.take_fields();
  RETURN_IF_ERROR(read_messages_tools(fields, body, request.conversation, request.parallel_calls));
  ASSIGN_OR_RETURN(const ThinkingSource source,
                   read_thinking(fields, default_thinking, request.conversation));
  RETURN_IF_ERROR(settle_forced_choice(source, request.conversation));
  ASSIGN_OR_RETURN(const auto stream, fields.boolean("stream"));
  request.is_streamed = stream.value_or(false);
  ASSIGN_OR_RETURN(request.user_id, read_user_id(fields));
  return request;
}

}  // namespace millrace::api::recipe
