#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/types.h"

namespace millrace::dataplane::transfer {

/// Who a peer says it is. Peers that differ in any part do not talk.
struct PeerIdentity {
  std::uint32_t protocol_version = kProtocolVersion;
  std::string model_id;
  std::string artifact_digest;  ///< raw SHA-256 bytes
};

/// kFailedPrecondition names the first part that differs, with both values.
absl::Status check_identity(const PeerIdentity& ours, const PeerIdentity& theirs);

}  // namespace millrace::dataplane::transfer
