#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "storage/fetch/block_io.h"
#include "storage/fetch/fetch_types.h"
#include "storage/fetch/window_types.h"

namespace millrace::storage::fetch {

/// Largest message of a Connect stream: a fetch of the most keys takes 512 KiB, a window up to
/// kMaxWindowBytes.
inline constexpr int kMaxMessageBytes = static_cast<int>(kMaxWindowBytes) + (4 << 20);
/// Engines connected at one time.
inline constexpr int kMaxSessions = 64;

/// Sliding windows in the memory of this machine.
struct WindowConfig {
  std::uint32_t window_bytes = 0;   ///< of the largest window, at most kMaxWindowBytes; 0: none
  std::size_t pool_bytes = 0;       ///< shared memory for all of them
  std::string listen_address;       ///< host:port for other machines; empty: none may read
  std::string advertise_address;    ///< host:port at which they find it; empty: where it listens
  std::size_t max_peer_reads = 16;  ///< from other machines at one time
  swa::WindowPoolLimits limits;     ///< its slots follow from the bytes
};

struct FetchServerConfig {
  std::string listen_address;  ///< "unix:/path"
  std::string host_id;         ///< one fetcher runs under it on a machine
  std::uint64_t incarnation = 0;
  std::uint32_t block_bytes = 0;  ///< of the largest block
  std::size_t read_arena_bytes = 0;
  std::size_t write_arena_bytes = 0;
  FetchLimits limits;
  WindowConfig windows;
};

/// The fetcher of a machine: api/proto/kvfetch.proto over FetchLoop.
///
/// Threads: gRPC's (they decode, queue commands and write) and the loop's. When it is gone, so are
/// its arenas' names; engines that have them mapped can go on reading what was ready.
class FetchServer {
 public:
  /// Serves when it returns. kInvalidArgument: an address that is no Unix socket, arenas that hold
  /// no block or no window, windows that are too large, a host id that is not plain;
  /// kFailedPrecondition: another fetcher runs under that host id or at that address;
  /// kResourceExhausted: the machine's shared memory has no room for the arenas; kUnavailable: it
  /// cannot listen at an address. `registry` must outlive the server.
  static absl::StatusOr<std::unique_ptr<FetchServer>> start(const FetchServerConfig& config,
                                                            std::unique_ptr<BlockIo> io,
                                                            Registry& registry, const Logger& log);
  /// Breaks the streams that are left.
  virtual ~FetchServer() = default;

  /// Where other machines find the windows of this one; empty: nowhere.
  virtual std::string window_address() const = 0;

  /// Refuses new fetches and reservations from now on; what is under way goes on.
  virtual void begin_drain() = 0;
  /// Waits until no fetch is open and no block is being read or stored. False at the timeout.
  virtual bool wait_drained(std::chrono::milliseconds timeout) = 0;
};

}  // namespace millrace::storage::fetch
