#include "api/recipe/responses_request.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "api/recipe/fields.h"
#include "api/recipe/forced_choice.h"
#include "api/recipe/json_mode.h"
#include "api/recipe/json_text.h"
#include "api/recipe/reasoning_effort.h"
#include "api/recipe/request_error.h"
#include "api/recipe/responses_input.h"
#include "api/recipe/responses_items.h"
#include "api/recipe/responses_tools.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxTopLogprobs = 20;
constexpr std::size_t kMaxMetadata = 16;
constexpr std::size_t kMaxMetadataKeyBytes = 64;
constexpr std::size_t kMaxMetadataValueBytes = 512;
constexpr std::size_t kMaxLabelBytes = 512;

constexpr std::string_view kIncludeLogprobs = "message.output_text.logprobs";
constexpr std::string_view kIncludeSealed = "reasoning.encrypted_content";

using Names = std::initializer_list<std::string_view>;

std::string listed(Names names) {
  std::string text;
  for (const std::string_view name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

/// A field that is one of these words; nullopt when absent.
absl::StatusOr<std::optional<std::string>> read_word(const Fields& fields, std::string_view name,
                                                     Names allowed) {
  ASSIGN_OR_RETURN(auto word, fields.string(name));
  if (word && std::find(allowed.begin(), allowed.end(), *word) == allowed.end()) {
    return field_error(fields.path(name),
                       str_cat("`", fields.path(name), "` must be one of ", listed(allowed)));
  }
  return word;
}

/// A text that is carried, not read; bounded because every answer repeats it.
absl::Status check_label(const Fields& fields, std::string_view name) {
  ASSIGN_OR_RETURN(const auto label, fields.string(name));
  if (label && label->size() > kMaxLabelBytes) {
    return field_error(name, str_cat("`", name, "` may have at most ", kMaxLabelBytes, " bytes"),
                       "string_above_max_length");
  }
  return absl::OkStatus();
}

/// `thinking`, an extension, wins over `reasoning.effort`, which wins over the default.
absl::StatusOr<ThinkingSource> read_thinking(const Fields& body, Thinking default_thinking,
                                             ResponsesRequest& request) {
  Conversation& conversation = request.conversation;
  ThinkingSource source = ThinkingSource::kDeployment;
  conversation.thinking = default_thinking;
  RETURN_IF_ERROR(body.require_object("reasoning"));
  if (const Json* reasoning = body.find("reasoning")) {
    const Fields fields(*reasoning, "reasoning");
    ASSIGN_OR_RETURN(const bool has_effort, read_effort(fields, "effort", conversation));
    if (has_effort) source = ThinkingSource::kRequest;
    for (const std::string_view name : {"summary", "generate_summary"}) {
      ASSIGN_OR_RETURN(const auto summary,
                       read_word(fields, name, {"auto", "concise", "detailed", "none"}));
      if (summary && summary != "none") request.reasoning_form = ReasoningForm::kSummary;
    }
  }
  RETURN_IF_ERROR(body.require_object("thinking"));
  if (const Json* thinking = body.find("thinking")) {
    ASSIGN_OR_RETURN(const auto type, Fields(*thinking, "thinking").string("type"));
    if (type != "enabled" && type != "disabled") {
      return field_error("thinking.type", "`thinking.type` must be enabled or disabled");
    }
    conversation.thinking = type == "enabled" ? Thinking::kOn : Thinking::kOff;
    source = ThinkingSource::kRequest;
  }
  return source;
}

absl::Status read_text(const Fields& body, Conversation& conversation) {
  RETURN_IF_ERROR(body.require_object("text"));
  const Json* text = body.find("text");
  if (text == nullptr) return absl::OkStatus();
  const Fields fields(*text, "text");
  ASSIGN_OR_RETURN([[maybe_unused]] const auto verbosity,
                   read_word(fields, "verbosity", {"low", "medium", "high"}));
  RETURN_IF_ERROR(fields.require_object("format"));
  const Json* format = fields.find("format");
  if (format == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto type, Fields(*format, "text.format").string("type"));
  if (type == "text") return absl::OkStatus();
  if (type == "json_schema") {
    return field_error("text.format",
                       "`text.format` of type json_schema is not supported by this server yet",
                       "unsupported_parameter");
  }
  if (type != "json_object") {
    return field_error("text.format.type", "`text.format.type` must be text or json_object",
                       type ? "invalid_value" : "missing_required_parameter");
  }
  if (!mentions_json(conversation.messages)) {
    return field_error("input",
                       "Prompt must contain the word 'json' in some form to use 'text.format' of "
                       "type 'json_object'.");
  }
  conversation.response_format = ResponseFormat::kJsonObject;
  return absl::OkStatus();
}

absl::Status read_include(const Fields& body, ResponsesRequest& request) {
  constexpr std::array<std::string_view, 8> kKnown = {kIncludeLogprobs,
                                                      kIncludeSealed,
                                                      "message.input_image.image_url",
                                                      "computer_call_output.output.image_url",
                                                      "code_interpreter_call.outputs",
                                                      "file_search_call.results",
                                                      "web_search_call.results",
                                                      "web_search_call.action.sources"};
  const Json* list = body.find("include");
  if (list == nullptr) return absl::OkStatus();
  const bool is_valid = list->is_array() && list->size() <= kKnown.size() &&
                        std::all_of(list->begin(), list->end(), [&](const Json& entry) {
                          return std::find(kKnown.begin(), kKnown.end(), entry) != kKnown.end();
                        });
  if (!is_valid) {
    std::string known;
    for (const std::string_view name : kKnown) known.append(known.empty() ? "" : ", ").append(name);
    return field_error("include", str_cat("`include` must be a list of some of ", known));
  }
  const auto has = [&](std::string_view name) {
    return std::find(list->begin(), list->end(), name) != list->end();
  };
  request.sampling.return_logprobs = has(kIncludeLogprobs);
  request.seals_reasoning = has(kIncludeSealed);
  return absl::OkStatus();
}

absl::Status read_generation(const Fields& body, int vocab_size, ResponsesRequest& request) {
  ASSIGN_OR_RETURN(request.sampling, read_sampling(body, vocab_size));
  // This protocol has its own name for the limit, and one answer.
  ASSIGN_OR_RETURN(const auto limit, body.integer("max_output_tokens", 1, kMaxCount));
  request.sampling.max_tokens.reset();
  if (limit) request.sampling.max_tokens = static_cast<std::uint32_t>(*limit);
  request.sampling.choices = 1;
  RETURN_IF_ERROR(read_include(body, request));
  ASSIGN_OR_RETURN(const auto top, body.integer("top_logprobs", 0, kMaxTopLogprobs));
  request.sampling.top_logprobs = static_cast<std::uint32_t>(top.value_or(0));
  if (top.value_or(0) > 0) request.sampling.return_logprobs = true;
  return absl::OkStatus();
}

absl::Status read_delivery(const Fields& body, ResponsesRequest& request) {
  ASSIGN_OR_RETURN(const auto stream, body.boolean("stream"));
  request.is_streamed = stream.value_or(false);
  ASSIGN_OR_RETURN(const auto store, body.boolean("store"));
  request.is_stored = store.value_or(true);
  ASSIGN_OR_RETURN(const auto background, body.boolean("background"));
  request.is_background = background.value_or(false);
  if (request.is_background && !request.is_stored) {
    return field_error("background", "`background` needs `store` to be true");
  }
  RETURN_IF_ERROR(body.require_object("stream_options"));
  const Json* options = body.find("stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!request.is_streamed) {
    return field_error("stream_options", "stream_options should be set along with stream = true");
  }
  return Fields(*options, "stream_options").boolean("include_obfuscation").status();
}

absl::Status check_metadata(const Fields& body) {
  RETURN_IF_ERROR(body.require_object("metadata"));
  const Json* metadata = body.find("metadata");
  if (metadata == nullptr) return absl::OkStatus();
  bool is_valid = metadata->size() <= kMaxMetadata;
  for (const auto& [key, value] : metadata->items()) {
    is_valid = is_valid && key.size() <= kMaxMetadataKeyBytes && value.is_string() &&
               value.get_ref<const std::string&>().size() <= kMaxMetadataValueBytes;
  }
  if (is_valid) return absl::OkStatus();
  return field_error("metadata", str_cat("`metadata` may have at most ", kMaxMetadata,
                                         " members, with keys of ", kMaxMetadataKeyBytes,
                                         " and strings of ", kMaxMetadataValueBytes, " bytes"));
}

/// Fields that change nothing here, but for whom the caller serves: they are checked, and repeated
/// by the response.
absl::Status read_carried(const Fields& body, ResponsesRequest& request) {
  RETURN_IF_ERROR(body.refuse({"conversation", "prompt", "context_management"}));
  for (const std::string_view name : {"user", "prompt_cache_key", "safety_identifier"}) {
    RETURN_IF_ERROR(check_label(body, name));
  }
  ASSIGN_OR_RETURN(const auto user, body.string("user"));
  ASSIGN_OR_RETURN(const auto safety_identifier, body.string("safety_identifier"));
  request.user_id = safety_identifier.value_or(user.value_or(""));
  RETURN_IF_ERROR(check_metadata(body));
  RETURN_IF_ERROR(
      read_word(body, "service_tier", {"auto", "default", "flex", "scale", "priority"}).status());
  RETURN_IF_ERROR(read_word(body, "truncation", {"disabled", "auto"}).status());
  RETURN_IF_ERROR(body.integer("max_tool_calls", 1, kMaxCount).status());
  return absl::OkStatus();
}

/// What typed clients expect a response to repeat, with the API's defaults for what was left out.
absl::StatusOr<std::string> echo_of(const Fields& body, std::string_view raw_body,
                                    const ResponsesRequest& request) {
  const auto given = [&](std::string_view name, Json otherwise) {
    const Json* value = body.find(name);
    return value == nullptr ? std::move(otherwise) : *value;
  };
  Json text = given("text", Json::object());
  if (!text.contains("format")) text["format"]["type"] = "text";
  Json reasoning = given("reasoning", Json::object());
  for (const char* name : {"effort", "summary"}) {
    if (!reasoning.contains(name)) reasoning[name] = nullptr;
  }
  Json echo = Json::object();
  echo["background"] = request.is_background;
  echo["instructions"] = given("instructions", nullptr);
  echo["max_output_tokens"] = given("max_output_tokens", nullptr);
  echo["max_tool_calls"] = given("max_tool_calls", nullptr);
  echo["metadata"] = given("metadata", Json::object());
  echo["parallel_tool_calls"] = request.parallel_calls == ParallelCalls::kAllowed;
  echo["previous_response_id"] = given("previous_response_id", nullptr);
  echo["prompt_cache_key"] = given("prompt_cache_key", nullptr);
  echo["reasoning"] = std::move(reasoning);
  echo["safety_identifier"] = given("safety_identifier", nullptr);
  echo["service_tier"] = "default";
  echo["store"] = request.is_stored;
  echo["temperature"] = given("temperature", 1.0);
  echo["text"] = std::move(text);
  echo["tool_choice"] = given("tool_choice", "auto");
  echo["top_logprobs"] = request.sampling.top_logprobs;
  echo["top_p"] = given("top_p", 1.0);
  echo["truncation"] = given("truncation", "disabled");
  echo["user"] = given("user", nullptr);
  std::string members = dump_json(echo);
  if (body.find("tools") == nullptr) return members.insert(1, "\"tools\":[],");
  // As text, so that numbers in schemas stay exact; on one line, as events need it.
  ASSIGN_OR_RETURN(const std::string tools, python_json(raw_member(raw_body, "tools")));
  return members.insert(1, str_cat("\"tools\":", tools, ","));
}

absl::StatusOr<Json> read_earlier_items(const Fields& body, const ResponsesBody& given) {
  ASSIGN_OR_RETURN(const auto previous, body.string("previous_response_id"));
  if (!previous) return Json::array();
  if (previous->empty()) {
    return field_error("previous_response_id", "`previous_response_id` must not be empty");
  }
  if (!given.earlier_items) return unsupported_field("previous_response_id");
  return parse_json(*given.earlier_items);
}

absl::Status read_items(const Fields& body, const ResponsesBody& given, ResponsesRequest& request) {
  ASSIGN_OR_RETURN(const auto instructions, body.string("instructions"));
  ASSIGN_OR_RETURN(Json earlier, read_earlier_items(body, given));
  ASSIGN_OR_RETURN(Json items, read_input_items(body, given.request_id));
  ImageReader images;
  ASSIGN_OR_RETURN(request.conversation.messages,
                   read_responses_input({instructions, earlier, items}, images));
  request.conversation.image_fields = images.take_fields();
  // What tools took and gave may hold numbers; they are inside strings, so nothing is lost.
  std::move(items.begin(), items.end(), std::back_inserter(earlier));
  request.input_items = dump_json(earlier);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ResponsesRequest> parse_responses_request(const ResponsesBody& body,
                                                         const Deployment& deployment) {
  ASSIGN_OR_RETURN(const Json json, parse_body(body.text));
  const Fields fields(json, "");
  ResponsesRequest request;
  RETURN_IF_ERROR(check_model(fields, deployment.names()));
  RETURN_IF_ERROR(read_carried(fields, request));
  RETURN_IF_ERROR(read_items(fields, body, request));
  RETURN_IF_ERROR(read_responses_tools(fields, body.text, request));
  RETURN_IF_ERROR(read_text(fields, request.conversation));
  ASSIGN_OR_RETURN(const ThinkingSource source,
                   read_thinking(fields, deployment.default_thinking, request));
  RETURN_IF_ERROR(settle_forced_choice(source, request.conversation));
  RETURN_IF_ERROR(read_generation(fields, deployment.vocab_size, request));
  RETURN_IF_ERROR(read_delivery(fields, request));
  ASSIGN_OR_RETURN(request.echo, echo_of(fields, body.text, request));
  return request;
}

std::string previous_response_id(std::string_view body) {
  return string_value(raw_member(body, "previous_response_id")).value_or("");
}

}  // namespace millrace::api::recipe
