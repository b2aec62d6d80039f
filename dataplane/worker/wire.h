#pragma once

#include <array>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/crypto/sha256.h"
#include "dataplane/routing/claim_desk.h"
#include "dataplane/transfer/identity.h"
#include "dataplane/worker/command.h"

namespace millrace::proto::v1 {
class EngineCommand;
class EngineEvents;
class Identity;
class Offers;
class PrefillCost;
class RequestKey;
}  // namespace millrace::proto::v1

// Between the messages of api/proto/engine.proto and the worker's own values. Whatever a peer can
// send comes out as a value or as an error that names the field; vocabulary, context and sampling
// ranges are the core's to check.

namespace millrace::dataplane::worker {

/// Longest request id that is taken.
inline constexpr std::size_t kMaxRequestIdBytes = 256;

/// Windows that a request may name: one for its hit, one for the replay before it.
inline constexpr int kMaxWindowSources = 4;

/// What the names of this worker's blocks depend on besides account and tokens. Names are always
/// made here, so that an engine never uses or stores a block under the name of another model or
/// layout.
struct KvNaming {
  Sha256Digest artifact_digest{};
  std::string layout_id;
};

transfer::PeerIdentity from_wire(const proto::v1::Identity& identity);

/// A StartPrefill, StartDecode or Cancel as a Command of that stream; deadlines count from `now`.
/// Without `naming` the worker has no KV store, and what a request says of it is passed over.
/// kInvalidArgument: no or an unknown command, a Hello, a bad request id, a number out of range.
absl::StatusOr<Command> from_wire(StreamId stream, proto::v1::EngineCommand& command, TimePoint now,
                                  const std::optional<KvNaming>& naming);

/// What a stream offers, and what it says beside that.
struct StreamOffers {
  routing::Offers offers{};
  std::array<bool, routing::kBucketCount> serves{};
  std::uint64_t view_version = 0;
  std::uint64_t answered_claim = 0;  ///< 0: none
};

/// Ages count back from `now`. kInvalidArgument names a bucket that there is not, or is there
/// twice.
absl::StatusOr<StreamOffers> from_wire(const proto::v1::Offers& offers, TimePoint now);

/// The key of a StartPrefill or StartDecode, for answering one that from_wire() refused; nullopt
/// for other commands and bad ids.
std::optional<RequestKey> start_key(const proto::v1::EngineCommand& command);

void to_wire(const Event& event, proto::v1::EngineEvents& events);
void to_wire(const WindowStored& window, proto::v1::EngineEvents& events);
void to_wire(const routing::ClaimDesk::Claim& claim, proto::v1::EngineEvents& events);
void to_wire(const Load& load, std::uint64_t started_requests, proto::v1::EngineEvents& events);

}  // namespace millrace::dataplane::worker
