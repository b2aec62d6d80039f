#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "common/log/log.h"
#include "storage/disk/slot_io.h"
#include "storage/index/shard_index.h"
#include "storage/map/map_cell.h"
#include "storage/node/event_queue.h"
#include "storage/node/target_host.h"

namespace millrace::storage::node {

/// Where a target lives.
struct TargetFolder {
  std::string target_id;
  std::string slot_path;   ///< its slot file
  std::string index_path;  ///< folder of its index
  disk::IoBackend backend = disk::IoBackend::kAuto;
};

struct TargetRunnerOptions {
  TargetFolder folder;
  index::TargetIdentity identity;
  TargetSettings settings = {};
  std::size_t mailbox_requests = 4096;
  std::size_t index_cache_bytes = std::size_t{64} << 20;
};

/// A request to another target, from a target's thread. `done` may come from any thread.
using PeerSender = std::function<void(const std::string& target_id, ShardOperation operation,
                                      ShardReplyCallback done)>;

/// A target on a thread of its own. One whose disk is full is opened again now and then: its slots
/// and its index, which takes nothing after a failed commit, then count as they are on the disk.
class TargetRunner {
 public:
  /// Begins to open the target on its thread. All references outlive the runner.
  TargetRunner(TargetRunnerOptions options, const MapCell& maps, PeerSender peers,
               const NodeMetrics& metrics, Logger log);
  ~TargetRunner();
  TargetRunner(const TargetRunner&) = delete;
  TargetRunner& operator=(const TargetRunner&) = delete;

  /// Answers what is queued as kBusy, waits for the I/O in flight, and ends the thread; requests
  /// are refused from now on. Not from the runner's own thread.
  void stop();
  /// Waits until the target is open, and says whether it is.
  absl::Status wait_opened();
  /// False: its mailbox is full, or it is ending; the request is untouched.
  bool push(QueuedRequest& request) { return queue_->push(request); }
  void push(OwedEvent&& event) { queue_->push(std::move(event)); }
  /// As of some tenths of a second ago at most.
  TargetStatus status() const;

 private:
  struct Link;
  struct Opened;

  enum class Ending { kStopped, kOpenAgain };

  void run();
  absl::StatusOr<std::unique_ptr<Opened>> open();
  void report_opening(const absl::StatusOr<std::unique_ptr<Opened>>& opened);
  Ending serve(Opened& opened, std::chrono::nanoseconds retry);
  Ending serve_nothing(const absl::Status& reason, std::chrono::nanoseconds retry);
  void apply(TargetHost& host, EventQueue::Batch batch);
  void publish(TargetStatus status);

  const TargetRunnerOptions options_;
  const MapCell& maps_;
  const PeerSender peers_;
  const NodeMetrics& metrics_;
  const Logger log_;
  /// Shared with callbacks that may come after the end.
  const std::shared_ptr<EventQueue> queue_;
  std::uint64_t openings_ = 0;  // of the target's thread
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<absl::Status> opened_;  // guarded by mutex_
  TargetStatus status_;                 // guarded by mutex_
  std::thread thread_;
};

}  // namespace millrace::storage::node
