#pragma once

#include "absl/status/statusor.h"
#include "dataplane/transfer/identity.h"
#include "dataplane/worker/command.h"

namespace millrace::proto::v1 {
class EngineCommand;
class EngineEvents;
class Identity;
class RequestKey;
}  // namespace millrace::proto::v1

// Between the messages of api/proto/engine.proto and the worker's own values. Whatever a peer can
// send comes out as a value or as an error that names the field; vocabulary, context and sampling
// ranges are the core's to check.

namespace millrace::dataplane::worker {

/// Longest request id that is taken.
inline constexpr std::size_t kMaxRequestIdBytes = 256;

transfer::PeerIdentity from_wire(const proto::v1::Identity& identity);

/// A StartPrefill, StartDecode or Cancel as a Command of that stream; deadlines count from `now`.
/// kInvalidArgument: no or an unknown command, a Hello, a bad request id, a number out of range.
absl::StatusOr<Command> from_wire(StreamId stream, proto::v1::EngineCommand& command,
                                  TimePoint now);

/// The key of a StartPrefill or StartDecode, for answering one that from_wire() refused; nullopt
/// for other commands and bad ids.
std::optional<RequestKey> start_key(const proto::v1::EngineCommand& command);

void to_wire(const Event& event, proto::v1::EngineEvents& events);
void to_wire(const Load& load, std::uint64_t started_requests, proto::v1::EngineEvents& events);

}  // namespace millrace::dataplane::worker
