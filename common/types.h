#pragma once

#include <cstdint>

namespace millrace {

/// A token of the model's vocabulary, 0-based.
using TokenId = std::int32_t;

/// Version of every message between our processes; a mismatch is refused with both values named.
inline constexpr std::uint32_t kProtocolVersion = 2;

}  // namespace millrace
