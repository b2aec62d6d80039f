#include <memory>
#include <utility>

#include "api/recipe/chat_request.h"
#include "api/recipe/event_stream.h"
#include "api/recipe/image_reference.h"
#include "api/recipe/logprob_json.h"
#include "api/recipe/parse_options.h"
#include "api/recipe/prepared_request.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

/// The Chat Completions form of an answer.
class ChatEncoder final : public ResponseEncoder {
 public:
  struct Options {
    bool has_reasoning = false;
    bool return_logprobs = false;
    bool include_usage = false;
    bool return_token_ids = false;
    std::uint32_t choices = 1;
  };
  ChatEncoder(const Deployment& deployment, const AnswerIdentity& identity, Options options,
              const std::vector<TokenId>& prompt)
      : deployment_(deployment),
        request_id_(identity.request_id),
        id_("chatcmpl-" + identity.request_id),
        created_(identity.created_seconds),
        options_(options),
        prompt_ids_(options.return_token_ids ? Json(prompt) : Json()),
        streamed_calls_(options.choices) {}

  std::string begin() override {
    std::string events;
    for (std::uint32_t index = 0; index < options_.choices; ++index) {
      Json delta = Json::object();
      delta["role"] = "assistant";
      if (options_.has_reasoning) {
        delta["content"] = nullptr;
        delta["reasoning_content"] = "";
      } else {
        delta["content"] = "";
      }
      Json first = chunk(index, std::move(delta));
      if (options_.return_token_ids && index == 0) first["prompt_token_ids"] = prompt_ids_;
      events += data_event(first);
    }
    return events;
  }

  std::string delta(const OutputDelta& output) override {
    std::string events;
    if (options_.return_token_ids && !output.ids.empty()) {
      // Not every token has text of its own, so they come by themselves.
      Json value = chunk(output.choice, Json::object());
      value["choices"][0]["token_ids"] = output.ids;
      events += data_event(value);
    }
    if (!output.reasoning.empty()) {
      Json delta = Json::object();
      delta["content"] = nullptr;
      delta["reasoning_content"] = output.reasoning;
      events += data_event(chunk(output.choice, std::move(delta)));
    }
    if (!output.text.empty() || !output.text_tokens.empty()) {
      Json delta = Json::object();
      delta["content"] = output.text;
      if (options_.has_reasoning) delta["reasoning_content"] = nullptr;
      Json value = chunk(output.choice, std::move(delta));
      value["choices"][0]["logprobs"] = logprobs(output.text_tokens);
      events += data_event(value);
    }
    for (const ToolEvent& event : output.tool_events) {
      if (event.kind == ToolEvent::Kind::kEnd) continue;
      Json delta = Json::object();
      delta["tool_calls"].push_back(call_delta(output.choice, event));
      events += data_event(chunk(output.choice, std::move(delta)));
    }
    return events;
  }

  std::string end_choice(const Ending& ending) override { return data_event(last_chunk(ending)); }

  std::string finish(const Ending& ending, const Usage& usage) override {
    Json last = last_chunk(ending);
    if (deployment_.usage_form == UsageForm::kFinishingChunk) last["usage"] = usage_json(usage);
    std::string events = data_event(last);
    if (options_.include_usage && deployment_.usage_form == UsageForm::kSeparateChunk) {
      Json extra = head("chat.completion.chunk");
      extra["choices"] = Json::array();
      extra["usage"] = usage_json(usage);
      events += data_event(extra);
    }
    return events.append(kDoneEvent);
  }

  std::string fail(const ErrorDetails& error) override {
    return str_cat("data: ", error_body(error), "\n\n");
  }

  std::string complete(const std::vector<Choice>& choices, const Usage& usage) override {
    Json body = head("chat.completion");
    for (std::size_t i = 0; i < choices.size(); ++i) {
      body["choices"].push_back(complete_choice(i, choices[i].output, choices[i].ending));
    }
    body["usage"] = usage_json(usage);
    if (options_.return_token_ids) body["prompt_token_ids"] = prompt_ids_;
    return dump_json(body);
  }

 private:
  /// Unique over all choices of an answer.
  std::string call_id(std::size_t choice, std::size_t index) const {
    return choice == 0 ? str_cat("call_", request_id_, "_", index)
                       : str_cat("call_", request_id_, "_", choice, "_", index);
  }

  /// The name comes once, with an empty text of arguments; then pieces of that text.
  Json call_delta(std::uint32_t choice, const ToolEvent& event) {
    std::size_t& begun = streamed_calls_[choice];
    Json call = Json::object();
    if (event.kind == ToolEvent::Kind::kArguments) {
      call["index"] = begun - 1;
      call["function"]["arguments"] = event.text;
      return call;
    }
    call["index"] = begun;
    call["id"] = call_id(choice, begun);
    ++begun;
    call["type"] = "function";
    call["function"]["name"] = event.text;
    call["function"]["arguments"] = "";
    return call;
  }

  /// Calls that ended; one that was cut off is left out.
  Json complete_calls(std::size_t choice, const std::vector<ToolEvent>& events) const {
    Json calls = Json::array();
    Json function = Json::object();
    std::string arguments;
    for (const ToolEvent& event : events) {
      switch (event.kind) {
        case ToolEvent::Kind::kBegin:
          function["name"] = event.text;
          arguments.clear();
          break;
        case ToolEvent::Kind::kArguments:
          arguments += event.text;
          break;
        case ToolEvent::Kind::kEnd:
          function["arguments"] = arguments;
          Json call = Json::object();
          call["id"] = call_id(choice, calls.size());
          call["type"] = "function";
          call["function"] = function;
          calls.push_back(std::move(call));
          break;
      }
    }
    return calls;
  }

  Json complete_choice(std::size_t index, const OutputDelta& output, const Ending& ending) const {
    Json message = Json::object();
    message["role"] = "assistant";
    Json calls = complete_calls(index, output.tool_events);
    const bool has_calls = !calls.empty();
    message["content"] = has_calls && output.text.empty() ? Json() : Json(output.text);
    if (options_.has_reasoning) message["reasoning_content"] = output.reasoning;
    if (has_calls) message["tool_calls"] = std::move(calls);
    Json choice = Json::object();
    choice["index"] = index;
    choice["message"] = std::move(message);
    choice["logprobs"] = logprobs(output.text_tokens);
    choice["finish_reason"] = finish_reason_name(ending.reason);
    if (options_.return_token_ids) choice["token_ids"] = output.ids;
    return choice;
  }

  Json head(std::string_view object) const {
    Json json = Json::object();
    json["id"] = id_;
    json["object"] = object;
    json["created"] = created_;
    json["model"] = deployment_.model_id;
    json["system_fingerprint"] = deployment_.system_fingerprint;
    return json;
  }

  Json last_chunk(const Ending& ending) const {
    Json delta = Json::object();
    delta["content"] = "";
    if (options_.has_reasoning) delta["reasoning_content"] = nullptr;
    Json last = chunk(ending.choice, std::move(delta));
    last["choices"][0]["finish_reason"] = finish_reason_name(ending.reason);
    return last;
  }

  Json chunk(std::uint32_t index, Json delta) const {
    Json choice = Json::object();
    choice["index"] = index;
    choice["delta"] = std::move(delta);
    choice["logprobs"] = nullptr;
    choice["finish_reason"] = nullptr;
    Json json = head("chat.completion.chunk");
    json["choices"].push_back(std::move(choice));
    if (options_.include_usage) json["usage"] = nullptr;
    return json;
  }

  /// Of the answer's tokens; reasoning has none in this protocol.
  Json logprobs(const std::vector<GeneratedToken>& tokens) const {
    if (!options_.return_logprobs) return nullptr;
    Json json = Json::object();
    json["content"] = logprob_list(tokens, *deployment_.tokenizer);
    json["refusal"] = nullptr;
    return json;
  }

  const Deployment& deployment_;
  const std::string request_id_;
  const std::string id_;
  const std::int64_t created_;
  const Options options_;
  const Json prompt_ids_;
  std::vector<std::size_t> streamed_calls_;  // begun so far, by choice
};

}  // namespace

std::string openai_error_body(const ErrorDetails& details, std::string_view /*request_id*/) {
  return error_body(details);
}

absl::StatusOr<PreparedRequest> prepare_chat(std::string_view body, const Deployment& deployment,
                                             const AnswerIdentity& identity) {
  ASSIGN_OR_RETURN(ChatRequest request,
                   parse_chat_request(body, deployment.names(), deployment.vocab_size,
                                      deployment.default_thinking));
  RETURN_IF_ERROR(refuse_images(request.conversation));
  settle_thinking_sampling(deployment.thinking_sampling, deployment.render.format,
                           request.conversation, request.sampling);
  PreparedRequest prepared;
  prepared.prompt_field = "messages";
  prepared.user_id = std::move(request.user_id);
  prepared.has_tools = !request.conversation.tools.empty();
  ASSIGN_OR_RETURN(const RenderedPrompt prompt, render(request.conversation, deployment.render));
  ASSIGN_OR_RETURN(prepared.prompt,
                   encode_prompt(prompt.segments, *deployment.tokenizer, deployment.encode_pool));
  const bool is_thinking = request.conversation.thinking == Thinking::kOn;
  prepared.parsing =
      parse_options(request.conversation, prompt.stage, request.parallel_calls, deployment.reading);
  prepared.parsing.stops = request.sampling.stop;
  prepared.parsing.keeps_stop = request.sampling.keeps_stop;
  prepared.is_streamed = request.stream.is_streamed;
  prepared.encoder = std::make_unique<ChatEncoder>(
      deployment, identity,
      ChatEncoder::Options{.has_reasoning = is_thinking,
                           .return_logprobs = request.sampling.return_logprobs,
                           .include_usage = request.stream.include_usage,
                           .return_token_ids = request.return_token_ids,
                           .choices = request.sampling.choices},
      prepared.prompt);
  prepared.sampling = std::move(request.sampling);
  return prepared;
}

}  // namespace millrace::api::recipe
