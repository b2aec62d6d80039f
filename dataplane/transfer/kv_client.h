#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/process/shared_region.h"
#include "dataplane/transfer/handover.h"
#include "dataplane/transfer/identity.h"

namespace millrace::dataplane::transfer {

enum class FetchPath { kSharedMemory, kStream };

/// A verified copy of, or window into, an exported sequence. Move-only.
class KvBytes {
 public:
  explicit KvBytes(SharedRegion region) : storage_(std::move(region)) {}
  explicit KvBytes(std::vector<std::byte> bytes) : storage_(std::move(bytes)) {}

  KvBytes(KvBytes&&) = default;
  KvBytes& operator=(KvBytes&&) = default;

  std::span<const std::byte> bytes() const;
  FetchPath path() const;

 private:
  std::variant<SharedRegion, std::vector<std::byte>> storage_;
};

/// Set by whoever no longer wants a fetch.
using CancelFlag = std::atomic<bool>;

/// Brings exported sequences here. Any thread.
class KvClient {
 public:
  struct Options {
    PeerIdentity identity;
    std::string host_id;                              ///< ours
    std::size_t max_bytes = std::size_t{1} << 30;     ///< of one sequence
    std::chrono::milliseconds fetch_timeout{10'000};  ///< of one stream, at most
    std::chrono::milliseconds release_timeout{2'000};
  };

  explicit KvClient(Options options);
  ~KvClient();

  /// The bytes of a hand-over: mapped when the source is on this host, else streamed. Their size
  /// and checksum are verified. Blocks for at most `timeout` (or the fetch timeout, if shorter).
  ///
  /// kUnavailable: the source is gone, has dropped the export, or does not answer in time.
  /// kDataLoss: size or checksum are not the announced ones. kFailedPrecondition: another identity,
  /// both values named. kInvalidArgument: larger than max_bytes. kCancelled: `cancel` was set.
  absl::StatusOr<KvBytes> fetch(const Handover& handover, std::chrono::milliseconds timeout,
                                const CancelFlag& cancel);

  /// Tells the source that its copy is no longer needed. kUnavailable when it cannot be reached;
  /// its time to live then drops it.
  absl::Status release(const std::string& source_address, std::uint64_t export_id);

 private:
  struct Channels;
  absl::StatusOr<KvBytes> fetch_stream(const Handover& handover, std::chrono::milliseconds timeout,
                                       const CancelFlag& cancel);

  const Options options_;
  std::unique_ptr<Channels> channels_;
};

}  // namespace millrace::dataplane::transfer
