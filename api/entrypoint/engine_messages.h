#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "api/entrypoint/balancer.h"
#include "api/entrypoint/kv_scope.h"
#include "api/entrypoint/request_flow.h"
#include "api/recipe/conversation.h"
#include "storage/swa/directory_entry.h"

namespace millrace::proto::v1 {
class EngineCommand;
class EngineEvent;
class EngineEvents;
class SamplingState;
}  // namespace millrace::proto::v1

namespace millrace::api::entrypoint {

/// The wire form of a request's sampling; `seed` is chosen once per request, so that every attempt
/// draws the same.
proto::v1::SamplingState to_sampling_state(const recipe::Sampling& sampling, std::uint64_t seed,
                                           std::uint32_t max_new_tokens);

/// What both starts say, whatever the attempt.
struct StartContext {
  const std::string& request_id;
  const RequestFlow& flow;
  const proto::v1::SamplingState& sampling;
  const KvScope* kv = nullptr;             ///< null: no KV is looked for, and none stored
  std::chrono::milliseconds time_left{0};  ///< until the request's deadline
  std::uint64_t answered_claim = 0;        ///< of the worker; 0: none
};
proto::v1::EngineCommand start_prefill_command(const StartContext& context,
                                               const flow_command::StartPrefill& start);
proto::v1::EngineCommand start_decode_command(const StartContext& context,
                                              const flow_command::StartDecode& start);
proto::v1::EngineCommand cancel_command(const std::string& request_id,
                                        const flow_command::Cancel& cancel);

/// What a prefill worker is told of waiting requests; their ages count to `now`. `answered_claim`:
/// the claim whose request was gone, 0: none.
proto::v1::EngineCommand offers_command(const Balancer::News& news, std::uint64_t view_version,
                                        std::uint64_t answered_claim, TimePoint now);

/// How a worker lays stored KV out, if this message says so; else empty.
const std::string& kv_layout_of(const proto::v1::EngineEvents& events);

/// Windows that requests left at a worker's fetcher, for the directory. What has no name of a block
/// is left out.
std::vector<storage::swa::DirectoryEntry> to_directory_entries(
    const proto::v1::EngineEvents& events);

/// What a worker's event means to the request it names. An event that is none of those we know
/// counts as a failure of that attempt.
FlowEvent to_flow_event(const std::string& worker_id, const proto::v1::EngineEvent& event);

}  // namespace millrace::api::entrypoint
