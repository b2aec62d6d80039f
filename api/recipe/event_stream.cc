#include "api/recipe/event_stream.h"

#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {

std::string data_event(const Json& value) { return str_cat("data: ", dump_json(value), "\n\n"); }

std::string named_event(const Json& value) {
  return str_cat("event: ", value["type"].get_ref<const std::string&>(), "\n", data_event(value));
}

Json usage_json(const Usage& usage) {
  Json json = Json::object();
  json["prompt_tokens"] = usage.prompt_tokens;
  json["completion_tokens"] = usage.completion_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  json["prompt_tokens_details"]["cached_tokens"] = usage.cached_tokens;
  json["completion_tokens_details"]["reasoning_tokens"] = usage.reasoning_tokens;
  // DeepSeek's names for the same.
  json["prompt_cache_hit_tokens"] = usage.cached_tokens;
  json["prompt_cache_miss_tokens"] = usage.prompt_tokens - usage.cached_tokens;
  return json;
}

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    case FinishReason::kStop:
      break;
  }
  return "stop";
}

std::string token_text(const tokenizer::Tokenizer& tokenizer, TokenId id) {
  return tokenizer.decode({&id, 1});
}

}  // namespace millrace::api::recipe
