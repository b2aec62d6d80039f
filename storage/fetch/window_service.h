#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"
#include "storage/fetch/arena.h"

namespace millrace::storage::fetch {

struct WindowServiceConfig {
  std::string listen_address;  ///< host:port for other machines; port 0: any free one
  std::uint64_t incarnation = 0;
  std::uint32_t window_bytes = 0;  ///< of the largest window
  /// Windows on their way to other machines; more are answered kBusy.
  int max_reads = 16;
};

/// Gives the windows of this machine to the fetchers of others: KvWindows of api/proto/swa.proto.
/// It reads the window arena as engines do, verified after the copy, so that it needs neither a
/// lease nor the fetcher's thread: a slot that is used anew meanwhile is a miss.
///
/// Counted: `millrace_swa_peer_requests_total{outcome}`: "served", or the reason of a miss.
class WindowService {
 public:
  /// Serves when it returns. kUnavailable: it cannot listen there, with the address. `registry`
  /// must outlive the service.
  static absl::StatusOr<std::unique_ptr<WindowService>> start(const WindowServiceConfig& config,
                                                              ArenaReader windows,
                                                              Registry& registry);
  /// Cuts off what is under way.
  virtual ~WindowService() = default;

  /// host:port it listens on.
  virtual const std::string& address() const = 0;
};

}  // namespace millrace::storage::fetch
