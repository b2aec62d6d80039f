#pragma once

#include <cstdint>
#include <span>

#include "common/crypto/sha256.h"

namespace millrace {

/// HMAC-SHA-256 (RFC 2104) of the message under a secret of any length.
Sha256Digest hmac_sha256(std::span<const std::uint8_t> secret,
                         std::span<const std::uint8_t> message);

}  // namespace millrace
