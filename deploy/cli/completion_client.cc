#include "deploy/cli/completion_client.h"

#include <string_view>
#include <utility>

#include "common/annotate.h"
#include "common/http/http_client.h"
#include "common/http/status_code.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "deploy/cli/sse_parser.h"

namespace millrace::deploy::cli {
namespace {

using common::http::HttpClient;
using common::http::HttpClientOptions;
using common::http::HttpRequest;
using common::http::HttpResponse;

/// The member's value, or nullptr when it is absent, null or `object` is none.
const Json* member(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string string_member(const Json& object, std::string_view key) {
  const Json* value = member(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

int int_member(const Json& object, std::string_view key) {
  const Json* value = member(object, key);
  return value != nullptr && value->is_number_integer() ? value->get<int>() : 0;
}

/// What the body of an error answer says, in OpenAI's shape or not.
absl::Status error_of(const HttpResponse& response) {
  std::string message = response.body.substr(0, 500);
  if (const absl::StatusOr<Json> body = parse_json(response.body); body.ok()) {
    if (const Json* error = member(*body, "error"); error != nullptr) {
      message = string_member(*error, "message");
    }
  }
  return absl::Status(common::http::code_of_http_status(response.status),
                      str_cat("HTTP ", response.status, ": ", message));
}

/// Adds one event of the stream to the answer; the new piece is returned for the receiver.
absl::StatusOr<Delta> apply_event(const Json& event, Completion& answer) {
  if (const Json* error = member(event, "error"); error != nullptr) {
    return absl::UnavailableError(string_member(*error, "message"));
  }
  if (const Json* usage = member(event, "usage"); usage != nullptr) {
    answer.prompt_tokens = int_member(*usage, "prompt_tokens");
    answer.completion_tokens = int_member(*usage, "completion_tokens");
  }
  Delta delta;
  const Json* choices = member(event, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return delta;
  const Json& choice = choices->front();
  if (const Json* message = member(choice, "delta"); message != nullptr) {
    delta.reasoning = string_member(*message, "reasoning_content");
    delta.text = string_member(*message, "content");
  } else {
    delta.text = string_member(choice, "text");
  }
  if (const Json* ids = member(choice, "token_ids"); ids != nullptr && ids->is_array()) {
    for (const Json& id : *ids) {
      if (id.is_number_integer()) delta.ids.push_back(id.get<TokenId>());
    }
  }
  if (const std::string reason = string_member(choice, "finish_reason"); !reason.empty()) {
    answer.finish_reason = reason;
  }
  answer.reasoning += delta.reasoning;
  answer.text += delta.text;
  answer.ids.insert(answer.ids.end(), delta.ids.begin(), delta.ids.end());
  return delta;
}

template <typename Request>
void add_common_members(const Request& request, Json& body) {
  if (request.max_tokens) body["max_tokens"] = *request.max_tokens;
  if (request.temperature) body["temperature"] = *request.temperature;
  if (request.seed) body["seed"] = *request.seed;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
}

}  // namespace

struct CompletionClient::Impl {
  Impl(std::string url, std::chrono::milliseconds timeout)
      : base_url(std::move(url)), http([&] {
          HttpClientOptions options;
          options.timeout = timeout;
          return options;
        }()) {}

  absl::StatusOr<Completion> stream(std::string_view path, const Json& body,
                                    const DeltaReceiver& receive) {
    Completion answer;
    SseParser parser;
    absl::Status failure = absl::OkStatus();
    bool is_done = false;
    const auto take = [&](std::string_view piece) -> absl::Status {
      ASSIGN_OR_RETURN(const std::vector<std::string> events, parser.feed(piece));
      for (const std::string& data : events) {
        if (data == "[DONE]") {
          is_done = true;
          continue;
        }
        absl::StatusOr<Json> event = parse_json(data);
        if (!event.ok()) return annotate(event.status(), "an event of the stream");
        ASSIGN_OR_RETURN(const Delta delta, apply_event(*event, answer));
        const bool is_empty = delta.text.empty() && delta.reasoning.empty() && delta.ids.empty();
        if (!is_empty && !receive(delta)) return absl::CancelledError("stopped by the caller");
      }
      return absl::OkStatus();
    };
    HttpRequest request;
    request.method = "POST";
    request.url = str_cat(base_url, path);
    request.body = dump_json(body);
    const absl::StatusOr<HttpResponse> response = http.stream(request, [&](std::string_view piece) {
      failure = take(piece);
      return failure.ok();
    });
    RETURN_IF_ERROR(failure);
    RETURN_IF_ERROR(response.status());
    if (response->status != 200) return error_of(*response);
    if (!is_done) return absl::UnavailableError("the server ended the stream early");
    return answer;
  }

  std::string base_url;
  HttpClient http;
};

CompletionClient::CompletionClient(std::string base_url, std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>(std::move(base_url), timeout)) {}
CompletionClient::CompletionClient(CompletionClient&&) noexcept = default;
CompletionClient::~CompletionClient() = default;

absl::StatusOr<ServedModel> CompletionClient::model() {
  ASSIGN_OR_RETURN(const HttpResponse response,
                   impl_->http.get(str_cat(impl_->base_url, "/v1/models")));
  if (response.status != 200) return error_of(response);
  ASSIGN_OR_RETURN(const Json body, parse_json(response.body));
  const Json* data = member(body, "data");
  if (data == nullptr || !data->is_array() || data->empty()) {
    return absl::UnavailableError("the server lists no model");
  }
  ServedModel model;
  model.id = string_member(data->front(), "id");
  if (const int length = int_member(data->front(), "max_model_len"); length > 0) {
    model.max_model_len = length;
  }
  return model;
}

absl::StatusOr<Completion> CompletionClient::chat(const ChatRequest& request,
                                                  const DeltaReceiver& receive) {
  Json body;
  body["model"] = request.model;
  body["messages"] = Json::array();
  for (const ChatMessage& message : request.messages) {
    body["messages"].push_back(Json{{"role", message.role}, {"content", message.content}});
  }
  if (request.is_thinking) {
    body["thinking"] = {{"type", *request.is_thinking ? "enabled" : "disabled"}};
  }
  add_common_members(request, body);
  return impl_->stream("/v1/chat/completions", body, receive);
}

absl::StatusOr<Completion> CompletionClient::complete(const TextRequest& request,
                                                      const DeltaReceiver& receive) {
  Json body;
  body["model"] = request.model;
  if (request.prompt_ids) {
    body["prompt"] = *request.prompt_ids;
  } else {
    body["prompt"] = request.prompt;
  }
  if (request.ignore_eos) body["ignore_eos"] = true;
  if (request.echo_ids) body["echo_ids"] = true;
  add_common_members(request, body);
  return impl_->stream("/v1/completions", body, receive);
}

}  // namespace millrace::deploy::cli
