#include "api/entrypoint/generation_session.h"

#include <iterator>
#include <utility>

#include "api/recipe/request_error.h"
#include "common/http/status_code.h"

namespace millrace::api::entrypoint {

namespace {

Outcome outcome_of(const recipe::Ending& ending) {
  if (!ending.stop.empty()) return Outcome::kStopString;
  switch (ending.reason) {
    case recipe::FinishReason::kLength:
      return Outcome::kLength;
    case recipe::FinishReason::kToolCalls:
      return Outcome::kToolCalls;
    case recipe::FinishReason::kStop:
      break;
  }
  return Outcome::kStop;
}

}  // namespace

void Client::refuse(const absl::Status& status) const {
  common::http::ServerReply reply;
  reply.status = common::http::http_status_of(status.code());
  reply.body = error_body(recipe::error_details(status), request_id);
  if (reply.status == 429 || reply.status == 503) reply.headers.emplace_back("Retry-After", "1");
  writer->respond(std::move(reply));
}

GenerationSession::GenerationSession(const SessionContext& context, recipe::PreparedRequest request,
                                     Client client)
    : context_(context),
      encoder_(std::move(request.encoder)),
      is_streamed_(request.is_streamed),
      client_(std::move(client)),
      parser_(*context.deployment.tokenizer, context.deployment.control,
              std::move(request.parsing)) {
  usage_.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
  if (is_streamed_) arm_keep_alive();
}

std::optional<Outcome> GenerationSession::deliver(
    const std::vector<recipe::GeneratedToken>& tokens) {
  recipe::OutputDelta delta;
  for (const recipe::GeneratedToken& token : tokens) {
    if (parser_.is_done()) break;
    parser_.push(token, delta);
    ++usage_.completion_tokens;
  }
  usage_.reasoning_tokens = parser_.reasoning_tokens();
  send(std::move(delta));
  if (!parser_.is_done()) return std::nullopt;
  return complete(recipe::FinishReason::kStop);
}

Outcome GenerationSession::complete(recipe::FinishReason reason) {
  recipe::OutputDelta rest;
  reason = parser_.finish(reason, rest);
  context_.metrics.call_failed(parser_.problem());
  send(std::move(rest));
  const recipe::Ending ending(reason, parser_.matched_stop());
  if (is_streamed_) {
    begin_events();
    client_.writer->write(encoder_->finish(ending, usage_));
    client_.writer->finish_stream();
  } else {
    common::http::ServerReply reply;
    reply.body = encoder_->complete(output_, ending, usage_);
    client_.writer->respond(std::move(reply));
  }
  return outcome_of(ending);
}

void GenerationSession::fail(const absl::Status& status) {
  if (!has_head_) {
    client_.refuse(status);
    return;
  }
  client_.writer->write(encoder_->fail(recipe::error_details(status)));
  client_.writer->finish_stream();
}

void GenerationSession::begin_stream() {
  if (std::exchange(has_head_, true)) return;
  common::http::ServerReply head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers.emplace_back("Cache-Control", "no-cache");
  client_.writer->begin_stream(std::move(head));
}

void GenerationSession::begin_events() {
  begin_stream();
  if (!std::exchange(has_events_, true)) client_.writer->write(encoder_->begin());
}

void GenerationSession::send(recipe::OutputDelta delta) {
  if (is_streamed_) {
    begin_events();
    const std::string events = encoder_->delta(delta);
    if (!events.empty()) is_quiet_ = false;
    client_.writer->write(events);
    return;
  }
  output_.reasoning += delta.reasoning;
  output_.text += delta.text;
  std::move(delta.text_tokens.begin(), delta.text_tokens.end(),
            std::back_inserter(output_.text_tokens));
  std::move(delta.tool_events.begin(), delta.tool_events.end(),
            std::back_inserter(output_.tool_events));
  output_.ids.insert(output_.ids.end(), delta.ids.begin(), delta.ids.end());
}

void GenerationSession::arm_keep_alive() {
  is_quiet_ = true;
  keep_alive_timer_ = context_.loop.after(context_.keep_alive, [this] {
    if (is_quiet_) {
      begin_stream();
      client_.writer->write(": keep-alive\n\n");
    }
    arm_keep_alive();
  });
}

}  // namespace millrace::api::entrypoint
