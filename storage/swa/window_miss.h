#pragma once

#include <cstdint>

namespace millrace::storage::swa {

/// Why a window could not be had. Closed set, for metrics and, by its number, on the wire.
enum class WindowMiss : std::uint8_t {
  kExpired,      ///< its time to live is over
  kRecycled,     ///< its slot holds another window
  kOtherOwner,   ///< the pool it was in is gone: its fetcher was started anew
  kUnreachable,  ///< its machine does not answer, or may not be asked
  kDeadline,     ///< the time of the request was over
  kCorrupt,      ///< key, size or checksum is not what was announced
  kBusy,         ///< a bound is reached: reads from other machines, or every slot is leased
  kNoPool,       ///< this machine, or the other one, keeps no windows
  kCancelled,    ///< the engine no longer wants it
};
inline constexpr int kWindowMisses = 9;
/// "expired", "recycled", ...
const char* window_miss_name(WindowMiss miss);

}  // namespace millrace::storage::swa
