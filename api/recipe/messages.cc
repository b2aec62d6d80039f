#include <memory>
#include <utility>

#include "api/recipe/event_stream.h"
#include "api/recipe/image_reference.h"
#include "api/recipe/messages_request.h"
#include "api/recipe/parse_options.h"
#include "api/recipe/prepared_request.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

/// Cache reads are no input tokens in this protocol, they count beside them.
Json messages_usage(const Usage& usage) {
  Json json = Json::object();
  json["input_tokens"] = usage.prompt_tokens - usage.cached_tokens;
  json["cache_creation_input_tokens"] = 0;
  json["cache_read_input_tokens"] = usage.cached_tokens;
  json["output_tokens"] = usage.completion_tokens;
  json["service_tier"] = "standard";
  return json;
}

std::string_view stop_reason_name(const Ending& ending) {
  if (!ending.stop.empty()) return "stop_sequence";
  switch (ending.reason) {
    case FinishReason::kLength:
      return "max_tokens";
    case FinishReason::kToolCalls:
      return "tool_use";
    case FinishReason::kStop:
      break;
  }
  return "end_turn";
}

Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

/// The Messages form of an answer: blocks that are open one at a time.
class MessagesEncoder final : public ResponseEncoder {
 public:
  MessagesEncoder(const Deployment& deployment, const AnswerIdentity& identity, Thinking thinking,
                  std::size_t prompt_tokens)
      : deployment_(deployment),
        request_id_(identity.request_id),
        id_("msg_" + identity.request_id),
        thinking_(thinking),
        prompt_tokens_(static_cast<std::uint32_t>(prompt_tokens)) {}

  void set_cached_tokens(std::uint32_t tokens) override { cached_tokens_ = tokens; }

  std::string begin() override {
    Json message = head();
    message["content"] = Json::array();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] =
        messages_usage({.prompt_tokens = prompt_tokens_, .cached_tokens = cached_tokens_});
    Json event = typed("message_start");
    event["message"] = std::move(message);
    std::string events = named_event(event);
    if (thinking_ == Thinking::kOn) open(Block::kThinking, thinking_block(""), events);
    return events;
  }

  std::string delta(const OutputDelta& output) override {
    std::string events;
    if (!output.reasoning.empty()) {
      ensure(Block::kThinking, thinking_block(""), events);
      piece("thinking_delta", "thinking", output.reasoning, events);
    }
    if (!output.text.empty()) {
      ensure(Block::kText, text_block(""), events);
      piece("text_delta", "text", output.text, events);
    }
    for (const ToolEvent& event : output.tool_events) {
      switch (event.kind) {
        case ToolEvent::Kind::kBegin: {
          Json block = call_block(calls_++, event.text);
          block["input"] = Json::object();
          open(Block::kToolUse, std::move(block), events);
          break;
        }
        case ToolEvent::Kind::kArguments:
          piece("input_json_delta", "partial_json", event.text, events);
          break;
        case ToolEvent::Kind::kEnd:
          close(events);
          break;
      }
    }
    return events;
  }

  std::string finish(const Ending& ending, const Usage& usage) override {
    std::string events;
    close(events);
    Json event = typed("message_delta");
    event["delta"]["stop_reason"] = stop_reason_name(ending);
    event["delta"]["stop_sequence"] = or_null(ending.stop);
    event["usage"] = messages_usage(usage);
    return events.append(named_event(event)).append(named_event(typed("message_stop")));
  }

  std::string keep_alive() override { return named_event(typed("ping")); }

  std::string fail(const ErrorDetails& error) override {
    return str_cat("event: error\ndata: ", messages_error_body(error, request_id_), "\n\n");
  }

  std::string complete(const std::vector<Choice>& choices, const Usage& usage) override {
    const auto& [output, ending] = choices.front();
    Json rest = Json::object();
    rest["stop_reason"] = stop_reason_name(ending);
    rest["stop_sequence"] = or_null(ending.stop);
    rest["usage"] = messages_usage(usage);
    // Inputs are put in as the text that was generated, so that their numbers stay exact.
    std::string body = dump_json(head());
    body.pop_back();
    body.append(",\"content\":[").append(content(output)).append("],");
    return body.append(dump_json(rest).substr(1));
  }

 private:
  enum class Block { kNone, kThinking, kText, kToolUse };

  static Json typed(std::string_view type) {
    Json json = Json::object();
    json["type"] = type;
    return json;
  }

  Json head() const {
    Json message = Json::object();
    message["id"] = id_;
    message["type"] = "message";
    message["role"] = "assistant";
    message["model"] = deployment_.model_id;
    return message;
  }

  Json thinking_block(const std::string& text) const {
    Json block = typed("thinking");
    block["thinking"] = text;
    block["signature"] = text.empty() ? "" : id_;
    return block;
  }

  static Json text_block(const std::string& text) {
    Json block = typed("text");
    block["text"] = text;
    return block;
  }

  Json call_block(int index, const std::string& name) const {
    Json block = typed("tool_use");
    block["id"] = str_cat("toolu_", request_id_, "_", index);
    block["name"] = name;
    return block;
  }

  void ensure(Block kind, Json block, std::string& events) {
    if (open_ != kind) open(kind, std::move(block), events);
  }

  void open(Block kind, Json block, std::string& events) {
    close(events);
    open_ = kind;
    Json event = typed("content_block_start");
    event["index"] = ++index_;
    event["content_block"] = std::move(block);
    events += named_event(event);
    if (index_ == 0) events += named_event(typed("ping"));
  }

  void close(std::string& events) {
    if (open_ == Block::kNone) return;
    // Signatures are opaque; ours tells which answer the reasoning belongs to.
    if (open_ == Block::kThinking) piece("signature_delta", "signature", id_, events);
    open_ = Block::kNone;
    Json event = typed("content_block_stop");
    event["index"] = index_;
    events += named_event(event);
  }

  void piece(std::string_view type, const char* field, const std::string& text,
             std::string& events) const {
    Json event = typed("content_block_delta");
    event["index"] = index_;
    event["delta"] = typed(type);
    event["delta"][field] = text;
    events += named_event(event);
  }

  /// The blocks of a whole answer, with commas between. A call that was cut off is left out.
  std::string content(const OutputDelta& output) const {
    std::vector<std::string> blocks;
    if (!output.reasoning.empty()) blocks.push_back(dump_json(thinking_block(output.reasoning)));
    if (!output.text.empty()) blocks.push_back(dump_json(text_block(output.text)));
    std::string name;
    std::string arguments;
    int calls = 0;
    for (const ToolEvent& event : output.tool_events) {
      if (event.kind == ToolEvent::Kind::kBegin) {
        name = event.text;
        arguments.clear();
      } else if (event.kind == ToolEvent::Kind::kArguments) {
        arguments += event.text;
      } else {
        std::string block = dump_json(call_block(calls++, name));
        block.pop_back();
        blocks.push_back(block.append(",\"input\":").append(arguments).append("}"));
      }
    }
    std::string joined;
    for (const std::string& block : blocks) joined.append(joined.empty() ? "" : ",").append(block);
    return joined;
  }

  const Deployment& deployment_;
  const std::string request_id_;
  const std::string id_;
  const Thinking thinking_;
  const std::uint32_t prompt_tokens_;
  std::uint32_t cached_tokens_ = 0;
  Block open_ = Block::kNone;
  int index_ = -1;  // of the block that was opened last
  int calls_ = 0;
};

std::string_view error_type_of(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOutOfRange:  // a body over the limit
      return "request_too_large";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return "invalid_request_error";
    case absl::StatusCode::kNotFound:
      return "not_found_error";
    case absl::StatusCode::kUnauthenticated:
      return "authentication_error";
    case absl::StatusCode::kPermissionDenied:
      return "permission_error";
    case absl::StatusCode::kResourceExhausted:
      return "rate_limit_error";
    case absl::StatusCode::kUnavailable:
      return "overloaded_error";
    default:
      return "api_error";
  }
}

}  // namespace

std::string messages_error_body(const ErrorDetails& details, std::string_view request_id) {
  Json body = Json::object();
  body["type"] = "error";
  body["error"]["type"] = error_type_of(details.status_code);
  body["error"]["message"] = details.message;
  body["request_id"] = request_id;
  return dump_json(body);
}

absl::StatusOr<PreparedRequest> prepare_messages(std::string_view body,
                                                 const Deployment& deployment,
                                                 const AnswerIdentity& identity) {
  ASSIGN_OR_RETURN(MessagesRequest request,
                   parse_messages_request(body, deployment.names(), deployment.default_thinking,
                                          MaxTokens::kRequired));
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
  prepared.parsing =
      parse_options(request.conversation, prompt.stage, request.parallel_calls, deployment.reading);
  prepared.parsing.stops = request.sampling.stop;
  prepared.is_streamed = request.is_streamed;
  prepared.encoder = std::make_unique<MessagesEncoder>(
      deployment, identity, request.conversation.thinking, prepared.prompt.size());
  prepared.sampling = std::move(request.sampling);
  return prepared;
}

absl::StatusOr<std::string> count_messages_tokens(std::string_view body,
                                                  const Deployment& deployment) {
  ASSIGN_OR_RETURN(const MessagesRequest request,
                   parse_messages_request(body, deployment.names(), deployment.default_thinking,
                                          MaxTokens::kOptional));
  RETURN_IF_ERROR(refuse_images(request.conversation));
  ASSIGN_OR_RETURN(const RenderedPrompt prompt, render(request.conversation, deployment.render));
  ASSIGN_OR_RETURN(const std::size_t tokens, count_prompt(prompt.segments, *deployment.tokenizer));
  Json count = Json::object();
  count["input_tokens"] = tokens;
  return dump_json(count);
}

}  // namespace millrace::api::recipe
