#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/types.h"
#include "dataplane/cost/cost_model.h"
#include "dataplane/engine/engine.h"
#include "dataplane/scheduler/scheduler.h"
#include "dataplane/transfer/export_table.h"
#include "dataplane/transfer/identity.h"
#include "dataplane/worker/command.h"

namespace millrace::dataplane::worker {

/// Largest message to or from a worker. A prompt token takes at most 5 bytes on the wire, so a
/// prompt of 32 Ki tokens takes 160 KiB and one of a million 5 MB.
inline constexpr int kMaxMessageBytes = 16 << 20;
/// Connect streams at one time.
inline constexpr int kMaxStreams = 256;
/// Messages that may wait for a stream whose reader is slow; one more breaks the stream.
inline constexpr std::size_t kMaxOutboxMessages = 4096;
/// A stream that has been silent this long gets a message with the load.
inline constexpr auto kHeartbeatInterval = std::chrono::milliseconds(100);

struct WorkerConfig {
  Role role = Role::kPrefill;
  std::string worker_id;
  std::string host_id;  ///< workers with equal host ids share memory
  transfer::PeerIdentity identity;
  std::string listen_address = "127.0.0.1:0";
  std::string advertise_address;  ///< host:port for other workers; empty: where it listens
  std::string kv_fetch;           ///< the machine's KV fetcher, unix:/PATH; empty: none is used
  std::vector<TokenId> eos_tokens;
  scheduler::SchedulerLimits limits;
  transfer::ExportLimits exports;
  std::optional<cost::CostModel> prefill_cost = std::nullopt;  ///< as CoreConfig has it
};

/// One engine behind its gRPC services Engine and KvTransfer.
///
/// Threads: gRPC's (they decode, post commands and write), one engine thread, a few import threads
/// and one that sends heartbeats. A stream's requests end with the stream.
class WorkerServer {
 public:
  /// Listens and serves when it returns. kUnavailable names an address that cannot be had,
  /// kInvalidArgument a limit or id that makes no sense. `metrics` must outlive the server.
  static absl::StatusOr<std::unique_ptr<WorkerServer>> start(const WorkerConfig& config,
                                                             std::unique_ptr<engine::Engine> engine,
                                                             Registry& metrics, const Logger& log);
  /// Breaks the streams that are left, after what was queued for them has been sent or a second has
  /// passed.
  virtual ~WorkerServer() = default;

  /// host:port it listens on.
  virtual const std::string& address() const = 0;

  /// Refuses new requests from now on; those taken up go on. Their entrypoints are told.
  virtual void begin_drain() = 0;
  /// Waits until nothing runs and nothing handed over is left. False at the timeout.
  virtual bool wait_drained(std::chrono::milliseconds timeout) = 0;
};

}  // namespace millrace::dataplane::worker
