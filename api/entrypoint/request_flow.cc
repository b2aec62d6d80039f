#include "api/entrypoint/request_flow.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/check.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

// A request that brings down whatever worker it reaches must not bring down all of them for ever.
constexpr int kMaxFailures = 8;

// Between tries at workers whose queues are full.
constexpr std::chrono::milliseconds kFirstBackOff{20};
constexpr std::chrono::milliseconds kLongestBackOff{1000};

/// Whether another worker, or the same one restarted, may do better.
bool is_worth_a_restart(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kDataLoss ||
         code == absl::StatusCode::kAborted || code == absl::StatusCode::kCancelled;
}

}  // namespace

RequestFlow::RequestFlow(std::vector<TokenId> prompt, std::uint32_t max_new_tokens)
    : tokens_(std::move(prompt)),
      prompt_tokens_(static_cast<std::uint32_t>(tokens_.size())),
      max_new_tokens_(max_new_tokens) {
  CHECK(prompt_tokens_ > 0 && max_new_tokens_ > 0);
}

std::vector<FlowCommand> RequestFlow::on_event(const FlowEvent& event, TimePoint now) {
  Commands commands;
  std::visit([&](const auto& alternative) { handle(alternative, now, commands); }, event);
  return commands;
}

std::optional<admin::WorkerRole> RequestFlow::wanted_role(TimePoint now) const {
  if (not_before_ && now < *not_before_) return std::nullopt;
  if (phase_ == Phase::kWaitingForPrefill) return admin::WorkerRole::kPrefill;
  if (phase_ == Phase::kWaitingForDecode) return admin::WorkerRole::kDecode;
  return std::nullopt;
}

std::optional<TimePoint> RequestFlow::not_before() const {
  const bool is_waiting = phase_ == Phase::kWaitingForPrefill || phase_ == Phase::kWaitingForDecode;
  return is_waiting ? not_before_ : std::nullopt;
}

void RequestFlow::handle(const flow_event::Assigned& event, TimePoint, Commands& commands) {
  not_before_.reset();
  worker_id_ = event.worker_id;
  // Every start is an attempt of its own, so that no late event of an earlier one is taken for it.
  ++attempt_;
  if (phase_ == Phase::kWaitingForPrefill) {
    phase_ = Phase::kPrefilling;
    commands.push_back(flow_command::StartPrefill{worker_id_, attempt_});
  } else {
    CHECK(phase_ == Phase::kWaitingForDecode && handover_);
    phase_ = Phase::kDecoding;
    commands.push_back(flow_command::StartDecode{worker_id_, attempt_, *handover_});
  }
}

void RequestFlow::handle(const flow_event::Prefilled& event, TimePoint, Commands& commands) {
  if (phase_ != Phase::kPrefilling || event.attempt != attempt_) {
    if (event.handover.export_id != 0) {
      commands.push_back(
          flow_command::Cancel{event.worker_id, event.attempt, event.handover.export_id});
    }
    return;
  }
  refusals_in_a_row_ = 0;
  handover_ = event.handover;
  source_id_ = event.worker_id;
  source_attempt_ = event.attempt;
  phase_ = Phase::kWaitingForDecode;
  // A prefill that goes on elsewhere finds what the first one stored: that was no saving.
  if (is_first_token_due()) {
    commands.push_back(flow_command::Cached{std::min(event.cached_tokens, prompt_tokens_)});
  }
  const bool is_over = deliver({event.token}, event.finish, commands);
  if (is_over) handover_.reset();
}

void RequestFlow::handle(const flow_event::Sampled& event, TimePoint, Commands& commands) {
  if (phase_ != Phase::kDecoding || event.attempt != attempt_) return;
  refusals_in_a_row_ = 0;
  handover_.reset();
  deliver(event.tokens, event.finish, commands);
}

/// Passes tokens on; true when the output is over.
bool RequestFlow::deliver(std::vector<recipe::GeneratedToken> tokens, EngineFinish finish,
                          Commands& commands) {
  const std::size_t room = max_new_tokens_ - delivered();
  const bool is_too_much = tokens.size() > room;
  if (is_too_much) tokens.resize(room);
  for (const recipe::GeneratedToken& token : tokens) tokens_.push_back(token.id);
  if (!tokens.empty()) commands.push_back(flow_command::Deliver{std::move(tokens)});
  const bool is_full = delivered() >= max_new_tokens_;
  if (finish == EngineFinish::kNone && !is_full) return false;
  // A worker that goes on past the limit is told to stop.
  if (finish == EngineFinish::kNone || is_too_much) cancel_running(commands);
  const bool is_stop = finish == EngineFinish::kStop && !is_too_much;
  phase_ = Phase::kDone;
  commands.push_back(flow_command::Complete{is_stop ? recipe::FinishReason::kStop
                                                    : recipe::FinishReason::kLength});
  return true;
}

void RequestFlow::handle(const flow_event::Failed& event, TimePoint now, Commands& commands) {
  const bool is_running = phase_ == Phase::kPrefilling || phase_ == Phase::kDecoding;
  if (!is_running || event.attempt != attempt_) return;
  if (event.status.code() == absl::StatusCode::kResourceExhausted) {
    // Its queue is full. What has been computed stays valid at the source.
    phase_ = phase_ == Phase::kPrefilling || !handover_ ? Phase::kWaitingForPrefill
                                                        : Phase::kWaitingForDecode;
    back_off(now);
  } else if (is_worth_a_restart(event.status.code())) {
    give_back_handover(commands);
    restart(RerouteReason::kWorkerRefused, event.status, commands);
    if (!is_done()) back_off(now);
  } else {
    give_back_handover(commands);
    fail(event.status, commands);
  }
}

void RequestFlow::handle(const flow_event::WorkerLost& event, TimePoint, Commands& commands) {
  const bool is_running = phase_ == Phase::kPrefilling || phase_ == Phase::kDecoding;
  if (is_running && worker_id_ == event.worker_id) {
    if (source_id_ != event.worker_id) give_back_handover(commands);
  } else if (phase_ != Phase::kWaitingForDecode || source_id_ != event.worker_id) {
    // A decode worker that cannot fetch from a lost source says so itself.
    return;
  }
  restart(RerouteReason::kWorkerLost,
          absl::UnavailableError(str_cat("engine worker ", event.worker_id, " was lost")),
          commands);
}

void RequestFlow::handle(const flow_event::DeadlinePassed&, TimePoint, Commands& commands) {
  if (is_done()) return;
  cancel_running(commands);
  fail(absl::DeadlineExceededError("the request's deadline passed"), commands);
}

void RequestFlow::handle(const flow_event::Cancelled&, TimePoint, Commands& commands) {
  if (is_done()) return;
  cancel_running(commands);
  phase_ = Phase::kDone;
}

void RequestFlow::restart(RerouteReason reason, const absl::Status& cause, Commands& commands) {
  handover_.reset();
  if (++failures_ > kMaxFailures) {
    fail(absl::UnavailableError(str_cat("given up after ", failures_,
                                        " failures of engines, last: ", message_of(cause))),
         commands);
    return;
  }
  phase_ = Phase::kWaitingForPrefill;
  commands.push_back(flow_command::Rerouted{reason, cause});
}

void RequestFlow::back_off(TimePoint now) {
  const int doublings = std::min(refusals_in_a_row_++, 10);
  not_before_ = now + std::min(kFirstBackOff * (1 << doublings), kLongestBackOff);
}

/// Ends what runs or is kept anywhere for this request.
void RequestFlow::cancel_running(Commands& commands) {
  if (phase_ == Phase::kPrefilling || phase_ == Phase::kDecoding) {
    commands.push_back(flow_command::Cancel{worker_id_, attempt_, 0});
  }
  give_back_handover(commands);
}

void RequestFlow::give_back_handover(Commands& commands) {
  if (!handover_) return;
  commands.push_back(flow_command::Cancel{source_id_, source_attempt_, handover_->export_id});
  handover_.reset();
}

void RequestFlow::fail(absl::Status status, Commands& commands) {
  phase_ = Phase::kDone;
  commands.push_back(flow_command::Fail{std::move(status)});
}

}  // namespace millrace::api::entrypoint
