#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "api/entrypoint/request_flow.h"
#include "api/recipe/conversation.h"

namespace millrace::proto::v1 {
class EngineCommand;
class EngineEvent;
class SamplingState;
}  // namespace millrace::proto::v1

namespace millrace::api::entrypoint {

/// The wire form of a request's sampling; `seed` is chosen once per request, so that every attempt
/// draws the same.
proto::v1::SamplingState to_sampling_state(const recipe::Sampling& sampling, std::uint64_t seed,
                                           std::uint32_t max_new_tokens);

/// `time_left` until the request's deadline.
proto::v1::EngineCommand start_prefill_command(const std::string& request_id,
                                               const RequestFlow& flow,
                                               const flow_command::StartPrefill& start,
                                               const proto::v1::SamplingState& sampling,
                                               std::chrono::milliseconds time_left);
proto::v1::EngineCommand start_decode_command(const std::string& request_id,
                                              const RequestFlow& flow,
                                              const flow_command::StartDecode& start,
                                              const proto::v1::SamplingState& sampling,
                                              std::chrono::milliseconds time_left);
proto::v1::EngineCommand cancel_command(const std::string& request_id,
                                        const flow_command::Cancel& cancel);

/// What a worker's event means to the request it names. An event that is none of those we know
/// counts as a failure of that attempt.
FlowEvent to_flow_event(const std::string& worker_id, const proto::v1::EngineEvent& event);

}  // namespace millrace::api::entrypoint
