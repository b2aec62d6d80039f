#include "api/entrypoint/generation_session.h"

#include <iterator>
#include <utility>

#include "api/recipe/request_error.h"
#include "common/http/status_code.h"

namespace millrace::api::entrypoint {

common::http::ServerReply error_reply(const absl::Status& status) {
  common::http::ServerReply reply;
  reply.status = common::http::http_status_of(status.code());
  reply.body = recipe::error_body(recipe::error_details(status));
  if (reply.status == 429 || reply.status == 503) reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

GenerationSession::GenerationSession(common::http::EventLoop& loop,
                                     const recipe::Deployment& deployment,
                                     recipe::PreparedRequest request,
                                     std::unique_ptr<common::http::ResponseWriter> writer,
                                     std::chrono::milliseconds keep_alive)
    : loop_(loop),
      keep_alive_(keep_alive),
      encoder_(std::move(request.encoder)),
      is_streamed_(request.is_streamed),
      writer_(std::move(writer)),
      parser_(*deployment.tokenizer, deployment.control, std::move(request.parsing)) {
  usage_.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
  if (is_streamed_) arm_keep_alive();
}

Appetite GenerationSession::deliver(const std::vector<recipe::GeneratedToken>& tokens) {
  recipe::OutputDelta delta;
  for (const recipe::GeneratedToken& token : tokens) {
    if (parser_.is_done()) break;
    parser_.push(token, delta);
    ++usage_.completion_tokens;
  }
  usage_.reasoning_tokens = parser_.reasoning_tokens();
  send(std::move(delta));
  if (!parser_.is_done()) return Appetite::kMore;
  complete(recipe::FinishReason::kStop);
  return Appetite::kEnough;
}

void GenerationSession::complete(recipe::FinishReason reason) {
  recipe::OutputDelta rest;
  reason = parser_.finish(reason, rest);
  send(std::move(rest));
  if (is_streamed_) {
    begin_events();
    writer_->write(encoder_->finish({reason, parser_.matched_stop()}, usage_));
    writer_->finish_stream();
  } else {
    common::http::ServerReply reply;
    reply.body = encoder_->complete(output_, {reason, parser_.matched_stop()}, usage_);
    writer_->respond(std::move(reply));
  }
}

void GenerationSession::fail(const absl::Status& status) {
  if (!has_head_) {
    writer_->respond(error_reply(status));
    return;
  }
  writer_->write(encoder_->fail(recipe::error_details(status)));
  writer_->finish_stream();
}

void GenerationSession::begin_stream() {
  if (std::exchange(has_head_, true)) return;
  common::http::ServerReply head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers.emplace_back("Cache-Control", "no-cache");
  writer_->begin_stream(std::move(head));
}

void GenerationSession::begin_events() {
  begin_stream();
  if (!std::exchange(has_events_, true)) writer_->write(encoder_->begin());
}

void GenerationSession::send(recipe::OutputDelta delta) {
  if (is_streamed_) {
    begin_events();
    const std::string events = encoder_->delta(delta);
    if (!events.empty()) is_quiet_ = false;
    writer_->write(events);
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
  keep_alive_timer_ = loop_.after(keep_alive_, [this] {
    if (is_quiet_) {
      begin_stream();
      writer_->write(": keep-alive\n\n");
    }
    arm_keep_alive();
  });
}

}  // namespace millrace::api::entrypoint
