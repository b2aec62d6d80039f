#pragma once

#include <cstdint>

namespace millrace::storage {

/// How long a block outlives its last use (storage/kv/eviction.h has the times).
enum class TtlClass : std::uint8_t { kAgent = 0, kChatbot = 1 };

}  // namespace millrace::storage
