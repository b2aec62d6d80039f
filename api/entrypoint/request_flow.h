#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "api/admin/view.h"
#include "api/recipe/output.h"
#include "common/time_point.h"
#include "common/types.h"

namespace millrace::api::entrypoint {

/// Why a request began again on another worker (or on the same one, restarted).
enum class RerouteReason {
  kWorkerLost,     ///< its stream broke
  kWorkerRefused,  ///< it drains, or the source of a hand-over is gone or damaged
};

/// Whether the engine says that the output is over.
enum class EngineFinish { kNone, kStop, kLength };

/// A prefilled request's KV, waiting for a decode worker. `message` is the engine protocol's own
/// description, carried as it came.
struct Handover {
  std::uint64_t export_id = 0;
  std::string message;
};

// What can happen to a request.
namespace flow_event {

/// The answer to wanted_role().
struct Assigned {
  std::string worker_id;
};
struct Prefilled {
  std::string worker_id;
  std::uint32_t attempt = 0;
  recipe::GeneratedToken token;
  EngineFinish finish = EngineFinish::kNone;
  std::uint32_t cached_tokens = 0;  ///< prompt tokens that were not run
  Handover handover;
};
struct Sampled {
  std::string worker_id;
  std::uint32_t attempt = 0;
  std::vector<recipe::GeneratedToken> tokens;
  EngineFinish finish = EngineFinish::kNone;
};
struct Failed {
  std::string worker_id;
  std::uint32_t attempt = 0;
  absl::Status status;
};
/// The stream to a worker broke; what ran there is gone.
struct WorkerLost {
  std::string worker_id;
};
struct DeadlinePassed {};
/// Nobody wants more output: the client has gone, or a stop string was found.
struct Cancelled {};

}  // namespace flow_event

using FlowEvent = std::variant<flow_event::Assigned, flow_event::Prefilled, flow_event::Sampled,
                               flow_event::Failed, flow_event::WorkerLost,
                               flow_event::DeadlinePassed, flow_event::Cancelled>;

// What is to be done about it, in this order.
namespace flow_command {

/// Start the flow's tokens() at this worker.
struct StartPrefill {
  std::string worker_id;
  std::uint32_t attempt = 0;
};
struct StartDecode {
  std::string worker_id;
  std::uint32_t attempt = 0;
  Handover handover;
};
struct Cancel {
  std::string worker_id;
  std::uint32_t attempt = 0;
  std::uint64_t export_id = 0;
};
/// The first prefill is over: so many prompt tokens were not run for it. Once, before any token.
struct Cached {
  std::uint32_t tokens = 0;
};
/// New tokens for the client, each exactly once and in order.
struct Deliver {
  std::vector<recipe::GeneratedToken> tokens;
};
/// The output is complete. The last command of a flow.
struct Complete {
  recipe::FinishReason reason = recipe::FinishReason::kStop;
};
/// The request failed. The last command of a flow.
struct Fail {
  absl::Status status;
};
struct Rerouted {
  RerouteReason reason = RerouteReason::kWorkerLost;
  absl::Status cause;
};

}  // namespace flow_command

using FlowCommand =
    std::variant<flow_command::StartPrefill, flow_command::StartDecode, flow_command::Cancel,
                 flow_command::Cached, flow_command::Deliver, flow_command::Complete,
                 flow_command::Fail, flow_command::Rerouted>;

/// The way of one accepted request through the engines: waiting, prefilling, (waiting,) decoding,
/// done. When a worker is lost it begins again with prompt and delivered tokens; sampling counts
/// absolute positions, so the continuation is the one the lost worker would have given, and the
/// client's stream repeats and misses nothing.
///
/// Pure: no I/O, no clock, no lock. Events of an older attempt are ignored, except that a hand-over
/// which nobody will fetch is given back. Begins in waiting for a prefill worker.
class RequestFlow {
 public:
  RequestFlow(std::vector<TokenId> prompt, std::uint32_t max_new_tokens);

  std::vector<FlowCommand> on_event(const FlowEvent& event, TimePoint now);

  /// The role of the worker it waits for, unless it is to hold on until not_before().
  std::optional<admin::WorkerRole> wanted_role(TimePoint now) const;
  /// While a worker's refusal is fresh: when to ask again.
  std::optional<TimePoint> not_before() const;

  bool is_done() const { return phase_ == Phase::kDone; }
  /// No token yet.
  bool is_first_token_due() const { return delivered() == 0; }
  /// No decode worker has it yet, and one will be wanted.
  bool is_decode_due() const { return phase_ != Phase::kDecoding && phase_ != Phase::kDone; }
  /// The attempt that runs at a worker now.
  std::optional<std::uint32_t> running_attempt() const {
    const bool is_running = phase_ == Phase::kPrefilling || phase_ == Phase::kDecoding;
    return is_running ? std::optional(attempt_) : std::nullopt;
  }
  /// Prompt and delivered tokens.
  const std::vector<TokenId>& tokens() const { return tokens_; }
  std::uint32_t prompt_tokens() const { return prompt_tokens_; }
  std::uint32_t max_new_tokens() const { return max_new_tokens_; }
  std::uint32_t delivered() const {
    return static_cast<std::uint32_t>(tokens_.size()) - prompt_tokens_;
  }

 private:
  using Commands = std::vector<FlowCommand>;
  enum class Phase { kWaitingForPrefill, kPrefilling, kWaitingForDecode, kDecoding, kDone };

  void handle(const flow_event::Assigned& event, TimePoint now, Commands& commands);
  void handle(const flow_event::Prefilled& event, TimePoint now, Commands& commands);
  void handle(const flow_event::Sampled& event, TimePoint now, Commands& commands);
  void handle(const flow_event::Failed& event, TimePoint now, Commands& commands);
  void handle(const flow_event::WorkerLost& event, TimePoint now, Commands& commands);
  void handle(const flow_event::DeadlinePassed& event, TimePoint now, Commands& commands);
  void handle(const flow_event::Cancelled& event, TimePoint now, Commands& commands);

  bool deliver(std::vector<recipe::GeneratedToken> tokens, EngineFinish finish, Commands& commands);
  void restart(RerouteReason reason, const absl::Status& cause, Commands& commands);
  void back_off(TimePoint now);
  void cancel_running(Commands& commands);
  void give_back_handover(Commands& commands);
  void fail(absl::Status status, Commands& commands);

  Phase phase_ = Phase::kWaitingForPrefill;
  std::vector<TokenId> tokens_;
  const std::uint32_t prompt_tokens_;
  const std::uint32_t max_new_tokens_;
  std::uint32_t attempt_ = 0;
  int failures_ = 0;
  int refusals_in_a_row_ = 0;
  std::optional<TimePoint> not_before_;
  std::string worker_id_;  // where attempt_ runs

  // The KV in hand: from Prefilled until the decode worker's first token shows that it was fetched.
  std::optional<Handover> handover_;
  std::string source_id_;
  std::uint32_t source_attempt_ = 0;
};

}  // namespace millrace::api::entrypoint
