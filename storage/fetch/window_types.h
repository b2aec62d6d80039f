#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/time_point.h"
#include "storage/fetch/fetch_types.h"
#include "storage/kv/block_key.h"
#include "storage/swa/window_location.h"
#include "storage/swa/window_miss.h"
#include "storage/swa/window_pool.h"

namespace millrace::storage::fetch {

/// What goes into the core for windows and comes out of it (storage/fetch/window_core.h).

/// Largest window that a fetcher can be told to keep.
inline constexpr std::uint32_t kMaxWindowBytes = 8 << 20;

/// What became of a window that an engine has put. Closed set, for metrics.
enum class WindowPutEnd : std::uint8_t {
  kStored,
  kAlreadyThere,  ///< the pool has it: it is kept longer
  kNoSlot,        ///< every slot is leased
  kBadChecksum,   ///< it is not what its writer announced
  kInvalid,       ///< empty, or larger than a slot
  kNoPool,        ///< this fetcher keeps no windows
  kStopping,      ///< this process is stopping
  kBusy,          ///< a queue was full
};
inline constexpr int kWindowPutEnds = 8;
/// "stored", "already_there", ...
const char* window_put_end_name(WindowPutEnd end);

struct WindowLimits {
  swa::WindowPoolLimits pool;
  std::uint32_t window_bytes = 0;  ///< of the largest window
  /// Windows of a session that it has asked for, and not been refused or given back.
  std::size_t max_gets_per_session = 1024;
  /// Reads from other machines under way; 0: none are asked.
  std::size_t max_peer_reads = 16;
};

/// How other machines name this pool.
struct WindowOwner {
  std::string host_id;
  std::string address;
  std::uint64_t incarnation = 0;
};

// Events.

/// Answered by WindowStored.
struct PutWindow {
  SessionId session = 0;
  RequestId request_id = 0;
  BlockKey key;
  std::vector<std::byte> window;
  std::uint32_t crc = 0;  ///< CRC-32C of the window
};
/// Answered by WindowReady or WindowMissed.
struct GetWindow {
  SessionId session = 0;
  RequestId request_id = 0;
  swa::WindowLocation from;
  BlockKey key;
  TimePoint deadline{};
};
/// Gives a ready window back, or ends a get.
struct ReleaseWindow {
  SessionId session = 0;
  RequestId request_id = 0;
};
/// A window as another machine sent it, verified; or why it did not.
struct PeerWindow {
  std::optional<swa::WindowMiss> miss;
  std::vector<std::byte> window;
};
/// A StartPeerRead is over.
struct PeerReadFinished {
  std::uint64_t serial = 0;
  PeerWindow read;
};

using WindowEvent = std::variant<PutWindow, GetWindow, ReleaseWindow, PeerReadFinished>;
/// What reaches the fetcher's thread.
using LoopEvent = std::variant<FetchEvent, WindowEvent>;

// Actions, to be done in their order.

/// Begin this use of a slot, and put the window there.
struct FillWindow {
  SlotRef ref;
  BlockKey key;
  std::vector<std::byte> window;
};
/// Nobody may read this use of a slot any more.
struct RetireWindow {
  SlotRef ref;
};
/// Read a window from another machine. Comes back as PeerReadFinished, once.
struct StartPeerRead {
  std::uint64_t serial = 0;
  swa::WindowLocation from;
  BlockKey key;
  TimePoint deadline{};
};

using WindowAction = std::variant<FillWindow, RetireWindow, StartPeerRead, Tell, RefuseSession>;
using WindowActions = std::vector<WindowAction>;

/// Sums since the start, and at the end what is there now.
struct WindowCounters {
  std::array<std::uint64_t, kWindowPutEnds> puts{};
  std::uint64_t local_hits = 0;
  std::uint64_t remote_hits = 0;
  std::array<std::uint64_t, swa::kWindowMisses> misses{};
  swa::WindowPoolCounters pool;
  std::uint64_t peer_reads = 0;  ///< under way
};

}  // namespace millrace::storage::fetch
