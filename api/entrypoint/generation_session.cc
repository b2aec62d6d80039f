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

void name_request(const std::string& request_id, common::http::ServerReply& reply) {
  reply.headers.emplace_back("x-request-id", request_id);
  reply.headers.emplace_back("request-id", request_id);
}

common::http::ServerReply error_reply(const absl::Status& status, const recipe::ErrorForm& errors,
                                      const std::string& request_id) {
  common::http::ServerReply reply;
  reply.status = status.code() == absl::StatusCode::kUnavailable
                     ? errors.unavailable_status
                     : common::http::http_status_of(status.code());
  reply.body = errors.body(recipe::error_details(status), request_id);
  const bool may_retry = status.code() == absl::StatusCode::kUnavailable ||
                         status.code() == absl::StatusCode::kResourceExhausted;
  if (may_retry) reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

void Client::refuse(const absl::Status& status) const {
  respond(error_reply(status, errors, request_id));
}

void Client::respond(common::http::ServerReply reply) const {
  name_request(request_id, reply);
  writer->respond(std::move(reply));
}

GenerationSession::GenerationSession(const SessionContext& context, recipe::PreparedRequest request,
                                     Client client)
    : context_(context),
      encoder_(std::move(request.encoder)),
      is_streamed_(request.is_streamed),
      choices_per_prompt_(request.sampling.choices),
      client_(std::move(client)),
      open_choices_(request.choice_count()) {
  for (std::size_t i = 0; i < open_choices_; ++i) {
    choices_.emplace_back(context.deployment, request.parsing).collected.output.choice =
        static_cast<std::uint32_t>(i);
  }
  usage_.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
  for (const std::vector<TokenId>& prompt : request.further_prompts) {
    usage_.prompt_tokens += static_cast<std::uint32_t>(prompt.size());
  }
  if (is_streamed_) arm_keep_alive();
}

/// Prompt tokens count once, whatever the number of answers: as the first of them found them.
void GenerationSession::cached(std::uint32_t choice, std::uint32_t tokens) {
  if (choice % choices_per_prompt_ != 0) return;
  usage_.cached_tokens += tokens;
  encoder_->set_cached_tokens(usage_.cached_tokens);
}

std::optional<Outcome> GenerationSession::deliver(
    std::uint32_t choice, const std::vector<recipe::GeneratedToken>& tokens) {
  ChoiceState& state = choices_[choice];
  recipe::OutputDelta delta;
  delta.choice = choice;
  for (const recipe::GeneratedToken& token : tokens) {
    if (state.parser.is_done()) break;
    state.parser.push(token, delta);
    ++usage_.completion_tokens;
  }
  usage_.reasoning_tokens += state.parser.reasoning_tokens() - state.reasoning_tokens;
  state.reasoning_tokens = state.parser.reasoning_tokens();
  send(std::move(delta));
  if (!state.parser.is_done()) return std::nullopt;
  return complete(choice, recipe::FinishReason::kStop);
}

Outcome GenerationSession::complete(std::uint32_t choice, recipe::FinishReason reason) {
  ChoiceState& state = choices_[choice];
  recipe::OutputDelta rest;
  rest.choice = choice;
  reason = state.parser.finish(reason, rest);
  context_.metrics.call_failed(state.parser.problem());
  send(std::move(rest));
  recipe::Ending ending(reason, state.parser.matched_stop());
  ending.choice = choice;
  const Outcome outcome = outcome_of(ending);
  const bool is_last = --open_choices_ == 0;
  if (is_streamed_) {
    begin_events();
    client_.writer->write(is_last ? encoder_->finish(ending, usage_)
                                  : encoder_->end_choice(ending));
    if (is_last) client_.writer->finish_stream();
  } else {
    state.collected.ending = std::move(ending);
    if (is_last) respond();
  }
  return outcome;
}

/// Every choice has ended: the whole answer.
void GenerationSession::respond() {
  std::vector<recipe::Choice> choices;
  choices.reserve(choices_.size());
  for (ChoiceState& choice : choices_) choices.push_back(std::move(choice.collected));
  common::http::ServerReply reply;
  reply.body = encoder_->complete(choices, usage_);
  client_.respond(std::move(reply));
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
  name_request(client_.request_id, head);
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
  recipe::OutputDelta& output = choices_[delta.choice].collected.output;
  output.reasoning += delta.reasoning;
  output.text += delta.text;
  std::move(delta.text_tokens.begin(), delta.text_tokens.end(),
            std::back_inserter(output.text_tokens));
  std::move(delta.tool_events.begin(), delta.tool_events.end(),
            std::back_inserter(output.tool_events));
  output.ids.insert(output.ids.end(), delta.ids.begin(), delta.ids.end());
}

void GenerationSession::arm_keep_alive() {
  is_quiet_ = true;
  keep_alive_timer_ = context_.loop.after(context_.keep_alive, [this] {
    if (is_quiet_) {
      begin_stream();
      client_.writer->write(has_events_ ? encoder_->keep_alive() : ": keep-alive\n\n");
    }
    arm_keep_alive();
  });
}

}  // namespace millrace::api::entrypoint
