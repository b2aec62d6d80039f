#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "dataplane/worker/command_queue.h"
#include "dataplane/worker/core.h"
#include "storage/fetch/fetch_client.h"

namespace millrace::dataplane::worker {

/// The worker's line to the KV fetcher of its machine: has stored blocks and windows brought, and
/// new ones stored. Answers every fetch with a KvFetched in the command queue, unless it was
/// cancelled.
///
/// Nothing here can make a request fail. Without a fetcher, or when it dies, nothing is found and
/// nothing is kept, and the connection is tried again; what does not fit a queue is dropped and
/// counted.
class KvLink {
 public:
  struct Limits {
    std::size_t max_seals = 256;   ///< blocks that wait for a slot
    std::size_t max_windows = 64;  ///< windows that are being stored
    std::chrono::milliseconds reconnect{500};
  };
  using Connect = std::function<absl::StatusOr<std::unique_ptr<storage::fetch::FetchClient>>()>;

  /// `connect` is called on a thread of the link. `commands` and `metrics` must outlive it.
  KvLink(Connect connect, std::uint32_t block_bytes, CommandQueue& commands, Registry& metrics,
         const Logger& log, const Limits& limits);
  /// Waits for a connection attempt under way; answers nothing any more.
  ~KvLink();

  /// Does not block.
  void take(KvJobs jobs);

 private:
  using FetchClient = storage::fetch::FetchClient;

  /// A fetch that has not been answered.
  struct Pending {
    KvFetchJob job;
    std::chrono::steady_clock::time_point begun{};
    std::vector<storage::fetch::SlotRef> ready{};
    bool has_blocks = false;   // all that will come
    bool has_windows = false;  // likewise
    std::size_t next_window = 0;
    std::optional<ReadyWindow> window{};
  };
  struct Metrics {
    explicit Metrics(Registry& registry);
    Gauge connected;
    Gauge backlog;
    Histogram wait_seconds;
    MetricFamily<Counter> fetches;
    MetricFamily<Counter> seals;
    MetricFamily<Counter> windows_read;
    MetricFamily<Counter> windows_kept;
  };

  void run();
  bool connect();
  void disconnect(const absl::Status& reason);
  void handle(const storage::fetch::SessionEvent& event);
  void handle(const storage::fetch::BlockReady& event);
  void handle(const storage::fetch::FetchDone& event);
  void handle(const storage::fetch::WindowReady& event);
  void handle(const storage::fetch::WindowMissed& event);
  void handle(const storage::fetch::WriteSlots& event);
  void handle(const storage::fetch::BlockStored& event);
  void handle(const storage::fetch::WindowStored& event);

  void begin(KvFetchJob job);
  void cancel(std::uint64_t request);
  void ask_for_window(Pending& pending);
  void answer_if_done(std::uint64_t request);
  void answer(Pending pending);
  void reserve_slots();

  const Connect connect_;
  const std::uint32_t block_bytes_;
  CommandQueue& commands_;
  const Metrics metrics_;
  const Logger log_;
  const Limits limits_;

  std::mutex mutex_;  // guards all below but the thread
  std::condition_variable wake_;
  bool is_stopping_ = false;
  std::shared_ptr<FetchClient> client_;  // null while there is no connection
  std::map<std::uint64_t, Pending> pending_;
  std::deque<KvSealJob> seals_;
  bool is_reserving_ = false;
  std::uint64_t next_window_ = 1;
  std::map<std::uint64_t, KvWindowJob> storing_windows_;  // without their bytes
  std::thread thread_;
};

}  // namespace millrace::dataplane::worker
