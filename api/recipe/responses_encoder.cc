#include "api/recipe/responses_encoder.h"

#include <utility>

#include "api/recipe/event_stream.h"
#include "api/recipe/logprob_json.h"
#include "api/recipe/responses_input.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

Json typed(std::string_view type) {
  Json json = Json::object();
  json["type"] = type;
  return json;
}

Json text_json(std::string_view type, const std::string& text) {
  Json json = typed(type);
  json["text"] = text;
  return json;
}

Json usage_of(const Usage& usage) {
  Json json = Json::object();
  json["input_tokens"] = usage.prompt_tokens;
  json["input_tokens_details"]["cached_tokens"] = usage.cached_tokens;
  json["output_tokens"] = usage.completion_tokens;
  json["output_tokens_details"]["reasoning_tokens"] = usage.reasoning_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  return json;
}

std::string_view error_code_of(const ErrorDetails& error) {
  switch (error.status_code) {
    case absl::StatusCode::kResourceExhausted:
      return "rate_limit_exceeded";
    case absl::StatusCode::kInvalidArgument:
      return "invalid_prompt";
    default:
      return "server_error";
  }
}

}  // namespace

ResponsesEncoder::ResponsesEncoder(const Deployment& deployment, ResponsesEncoding encoding)
    : deployment_(deployment), encoding_(std::move(encoding)) {}

std::string ResponsesEncoder::begin() {
  status_ = "in_progress";
  emit_response("response.created");
  emit_response("response.in_progress");
  return take_events();
}

std::string ResponsesEncoder::delta(const OutputDelta& delta) {
  take(delta);
  return take_events();
}

std::string ResponsesEncoder::finish(const Ending& ending, const Usage& usage) {
  end(ending, usage);
  emit_response(str_cat("response.", status_));
  return take_events();
}

std::string ResponsesEncoder::fail(const ErrorDetails& error) {
  const bool has_begun = status_ != "queued";
  status_ = "failed";
  error_ = error;
  if (is_open()) items_.back().status = "incomplete";
  if (has_begun) {
    emit_response("response.failed");
    return take_events();
  }
  Json event = typed("error");
  event["code"] = error.code.empty() ? Json(error_code_of(error)) : Json(error.code);
  event["message"] = error.message;
  event["param"] = error.param.empty() ? Json() : Json(error.param);
  emit(std::move(event));
  return take_events();
}

std::string ResponsesEncoder::complete(const std::vector<Choice>& choices, const Usage& usage) {
  mode_ = Events::kLeftOut;
  take(choices.front().output);
  end(choices.front().ending, usage);
  return response();
}

std::string ResponsesEncoder::fail_instead(std::string_view events, const ErrorDetails& error) {
  constexpr std::string_view kEnd = "\n\n";
  const std::size_t before_last = events.rfind(kEnd, events.size() - kEnd.size() - 1);
  const std::size_t kept = before_last == std::string_view::npos ? 0 : before_last + kEnd.size();
  --sequence_number_;
  completed_seconds_.reset();
  return str_cat(events.substr(0, kept), fail(error));
}

void ResponsesEncoder::cancel() {
  if (is_open()) items_.back().status = "incomplete";
  status_ = "cancelled";
}

void ResponsesEncoder::end(const Ending& ending, const Usage& usage) {
  const bool is_cut = ending.reason == FinishReason::kLength;
  close(is_cut ? "incomplete" : "completed");
  status_ = is_cut ? "incomplete" : "completed";
  if (!is_cut) completed_seconds_ = encoding_.now_seconds();
  usage_ = usage;
}

void ResponsesEncoder::take(const OutputDelta& output) {
  if (!output.reasoning.empty()) add_reasoning(output.reasoning);
  if (!output.text.empty()) add_text(output);
  for (const ToolEvent& event : output.tool_events) take_tool_event(event);
}

void ResponsesEncoder::take_tool_event(const ToolEvent& event) {
  switch (event.kind) {
    case ToolEvent::Kind::kBegin:
      open_call(event.text);
      break;
    case ToolEvent::Kind::kArguments:
      add_arguments(items_.back().kind == Kind::kCustomCall
                        ? items_.back().custom_input.push(event.text)
                        : event.text);
      break;
    case ToolEvent::Kind::kEnd:
      if (items_.back().kind == Kind::kCustomCall) {
        add_arguments(items_.back().custom_input.finish());
      }
      close("completed");
      break;
  }
}

ResponsesEncoder::Item& ResponsesEncoder::ensure(Kind kind) {
  return is_open() && items_.back().kind == kind ? items_.back() : open(kind);
}

ResponsesEncoder::Item& ResponsesEncoder::open(Kind kind) {
  close("completed");
  const std::string suffix = str_cat("_", encoding_.request_id, "_", items_.size());
  Item& item = items_.emplace_back();
  item.kind = kind;
  item.status = "in_progress";
  switch (kind) {
    case Kind::kReasoning:
      item.id = "rs" + suffix;
      break;
    case Kind::kMessage:
      item.id = "msg" + suffix;
      item.phase = "final_answer";
      break;
    case Kind::kFunctionCall:
    case Kind::kCustomCall:
      item.id = (kind == Kind::kCustomCall ? "ctc" : "fc") + suffix;
      item.call_id = "call" + suffix;
      return item;  // announced with its name
  }
  emit_item("response.output_item.added");
  if (kind == Kind::kReasoning && encoding_.reasoning_form == ReasoningForm::kSummary) {
    Json event = text_event("response.reasoning_summary_part.added");
    event["part"] = text_json("summary_text", "");
    emit(std::move(event));
  } else {
    Json event = text_event("response.content_part.added");
    event["part"] = part_json(item);
    emit(std::move(event));
  }
  return item;
}

void ResponsesEncoder::open_call(const std::string& full_name) {
  if (is_open() && items_.back().kind == Kind::kMessage) items_.back().phase = "commentary";
  const bool is_custom = encoding_.custom_tools.contains(full_name);
  Item& item = open(is_custom ? Kind::kCustomCall : Kind::kFunctionCall);
  const std::size_t colons = full_name.find("::");
  if (colons == std::string::npos) {
    item.name = full_name;
  } else {
    item.name_space = full_name.substr(0, colons);
    item.name = full_name.substr(colons + 2);
  }
  emit_item("response.output_item.added");
}

void ResponsesEncoder::add_reasoning(const std::string& text) {
  ensure(Kind::kReasoning).text += text;
  if (mode_ == Events::kLeftOut) return;
  Json event = text_event(encoding_.reasoning_form == ReasoningForm::kSummary
                              ? "response.reasoning_summary_text.delta"
                              : "response.reasoning_text.delta");
  event["delta"] = text;
  emit(std::move(event));
}

void ResponsesEncoder::add_text(const OutputDelta& output) {
  Item& item = ensure(Kind::kMessage);
  item.text += output.text;
  if (encoding_.return_logprobs) {
    item.tokens.insert(item.tokens.end(), output.text_tokens.begin(), output.text_tokens.end());
  }
  if (mode_ == Events::kLeftOut) return;
  Json event = text_event("response.output_text.delta");
  event["delta"] = output.text;
  event["logprobs"] = encoding_.return_logprobs
                          ? logprob_list(output.text_tokens, *deployment_.tokenizer)
                          : Json::array();
  emit(std::move(event));
}

void ResponsesEncoder::add_arguments(std::string_view piece) {
  Item& item = items_.back();
  item.text += piece;
  if (mode_ == Events::kLeftOut || piece.empty()) return;
  emit(call_event(item.kind == Kind::kCustomCall ? "response.custom_tool_call_input.delta"
                                                 : "response.function_call_arguments.delta",
                  "delta", piece));
}

/// Ends the open item. A call that was cut off does not get the event that says what it is called
/// with: nobody shall execute it.
void ResponsesEncoder::close(std::string_view status) {
  if (!is_open()) return;
  Item& item = items_.back();
  if (item.kind == Kind::kReasoning || item.kind == Kind::kMessage) {
    close_part(item);
  } else if (status == "completed") {
    emit(item.kind == Kind::kCustomCall
             ? call_event("response.custom_tool_call_input.done", "input", item.text)
             : call_event("response.function_call_arguments.done", "arguments", item.text));
  }
  item.status = status;
  emit_item("response.output_item.done");
}

void ResponsesEncoder::close_part(const Item& item) {
  if (mode_ == Events::kLeftOut) return;
  const bool is_summary =
      item.kind == Kind::kReasoning && encoding_.reasoning_form == ReasoningForm::kSummary;
  Json text = text_event(is_summary                      ? "response.reasoning_summary_text.done"
                         : item.kind == Kind::kReasoning ? "response.reasoning_text.done"
                                                         : "response.output_text.done");
  if (item.kind == Kind::kMessage) text["logprobs"] = part_json(item)["logprobs"];
  text["text"] = item.text;
  emit(std::move(text));
  Json part = text_event(is_summary ? "response.reasoning_summary_part.done"
                                    : "response.content_part.done");
  part["part"] = is_summary ? text_json("summary_text", item.text) : part_json(item);
  emit(std::move(part));
}

Json ResponsesEncoder::part_json(const Item& item) const {
  if (item.kind == Kind::kReasoning) return text_json("reasoning_text", item.text);
  Json part = typed("output_text");
  part["annotations"] = Json::array();
  part["logprobs"] = logprob_list(item.tokens, *deployment_.tokenizer);
  part["text"] = item.text;
  return part;
}

Json ResponsesEncoder::item_json(const Item& item) const {
  constexpr std::string_view kTypes[] = {"reasoning", "message", "function_call",
                                         "custom_tool_call"};
  Json json = typed(kTypes[static_cast<std::size_t>(item.kind)]);
  json["id"] = item.id;
  json["status"] = item.status;
  if (item.kind == Kind::kFunctionCall || item.kind == Kind::kCustomCall) {
    json["call_id"] = item.call_id;
    json["name"] = item.name;
    if (!item.name_space.empty()) json["namespace"] = item.name_space;
    json[item.kind == Kind::kCustomCall ? "input" : "arguments"] = item.text;
    return json;
  }
  if (item.kind == Kind::kMessage) {
    json["role"] = "assistant";
    json["phase"] = item.phase;
  }
  const bool has_text = !item.text.empty();
  json["content"] = has_text ? Json::array({part_json(item)}) : Json::array();
  if (item.kind == Kind::kMessage) return json;
  json["summary"] = Json::array();
  if (has_text && encoding_.reasoning_form == ReasoningForm::kSummary) {
    json["summary"].push_back(text_json("summary_text", item.text));
  }
  if (has_text && encoding_.seals_reasoning) json["encrypted_content"] = seal_reasoning(item.text);
  return json;
}

/// An event of the open item's text, up to its place.
Json ResponsesEncoder::text_event(std::string_view type) const {
  const Item& item = items_.back();
  const bool is_summary =
      item.kind == Kind::kReasoning && encoding_.reasoning_form == ReasoningForm::kSummary;
  Json event = typed(type);
  event[is_summary ? "summary_index" : "content_index"] = 0;
  event["item_id"] = item.id;
  event["output_index"] = output_index();
  return event;
}

Json ResponsesEncoder::call_event(std::string_view type, const char* field,
                                  std::string_view text) const {
  Json event = typed(type);
  event[field] = text;
  event["item_id"] = items_.back().id;
  event["output_index"] = output_index();
  return event;
}

void ResponsesEncoder::emit(Json event) {
  if (mode_ == Events::kLeftOut) return;
  event["sequence_number"] = sequence_number_++;
  events_ += named_event(event);
}

void ResponsesEncoder::emit_item(std::string_view type) {
  if (mode_ == Events::kLeftOut) return;
  Json event = typed(type);
  event["item"] = item_json(items_.back());
  event["output_index"] = output_index();
  emit(std::move(event));
}

/// Put together as text, because the response repeats texts of the request as they came.
void ResponsesEncoder::emit_response(std::string_view type) {
  events_ += str_cat("event: ", type, "\ndata: {\"type\":\"", type, "\",\"response\":", response(),
                     ",\"sequence_number\":", sequence_number_++, "}\n\n");
}

std::string ResponsesEncoder::take_events() { return std::exchange(events_, {}); }

std::string ResponsesEncoder::output_items() const {
  Json list = Json::array();
  for (const Item& item : items_) list.push_back(item_json(item));
  return dump_json(list);
}

std::string ResponsesEncoder::response() const {
  Json json = Json::object();
  json["id"] = encoding_.response_id;
  json["object"] = "response";
  json["created_at"] = encoding_.created_seconds;
  json["model"] = deployment_.model_id;
  json["status"] = status_;
  json["completed_at"] = completed_seconds_ ? Json(*completed_seconds_) : Json();
  json["error"] = nullptr;
  if (error_) {
    json["error"] = Json::object();
    json["error"]["code"] = error_code_of(*error_);
    json["error"]["message"] = error_->message;
  }
  json["incomplete_details"] = nullptr;
  if (status_ == "incomplete") json["incomplete_details"] = {{"reason", "max_output_tokens"}};
  json["output"] = Json::array();
  for (const Item& item : items_) json["output"].push_back(item_json(item));
  json["usage"] = usage_ ? usage_of(*usage_) : Json();
  std::string text = dump_json(json);
  text.pop_back();
  return text.append(",").append(encoding_.echo, 1);
}

}  // namespace millrace::api::recipe
