#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"
#include "storage/swa/directory_entry.h"
#include "storage/swa/window_directory.h"

namespace millrace::storage::swa {

struct DirectoryServiceOptions {
  /// host:port for the other entrypoints; port 0: any free one.
  std::string listen_address = "127.0.0.1:0";
  WindowDirectoryLimits limits{};
};

/// An entrypoint's shard of the directory: WindowDirectory with a clock behind a mutex, served to
/// the other entrypoints (KvDirectory of api/proto/swa.proto) by a few threads of its own, and
/// asked directly by its own. Any thread; nothing blocks.
///
/// Counted: `millrace_swa_directory_entries`, `millrace_swa_directory_puts_total{outcome}`,
/// `millrace_swa_directory_gets_total{outcome}` (found, missing), for every asker together.
class DirectoryService {
 public:
  /// Serves when it returns. kUnavailable: it cannot listen there, with the address. `registry`
  /// must outlive the service.
  static absl::StatusOr<std::unique_ptr<DirectoryService>> start(
      const DirectoryServiceOptions& options, Registry& registry);
  /// Cuts off what is under way.
  virtual ~DirectoryService() = default;

  /// host:port it listens on.
  virtual const std::string& address() const = 0;

  virtual void put(std::span<const DirectoryEntry> entries) = 0;
  /// One answer for each key, in their order; nullopt: not known.
  virtual std::vector<std::optional<WindowLocation>> get(std::span<const BlockKey> keys) = 0;
};

}  // namespace millrace::storage::swa
