#include "dataplane/transfer/identity.h"

#include <algorithm>
#include <cstddef>

#include "common/hex.h"
#include "common/str_cat.h"

namespace millrace::dataplane::transfer {
namespace {

/// What a peer sends is not printed beyond this.
constexpr std::size_t kMaxPrintedBytes = 128;

std::string hex(const std::string& bytes) {
  return to_hex({reinterpret_cast<const std::uint8_t*>(bytes.data()),
                 std::min(bytes.size(), kMaxPrintedBytes)});
}

}  // namespace

absl::Status check_identity(const PeerIdentity& ours, const PeerIdentity& theirs) {
  if (ours.protocol_version != theirs.protocol_version) {
    return absl::FailedPreconditionError(str_cat("protocol version ", theirs.protocol_version,
                                                 " of the peer is not ours, ",
                                                 ours.protocol_version));
  }
  if (ours.model_id != theirs.model_id) {
    return absl::FailedPreconditionError(
        str_cat("model \"", theirs.model_id.substr(0, kMaxPrintedBytes),
                "\" of the peer is not ours, \"", ours.model_id, "\""));
  }
  if (ours.artifact_digest != theirs.artifact_digest) {
    return absl::FailedPreconditionError(str_cat("artifact digest ", hex(theirs.artifact_digest),
                                                 " of the peer is not ours, ",
                                                 hex(ours.artifact_digest)));
  }
  return absl::OkStatus();
}

}  // namespace millrace::dataplane::transfer
