#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/metrics/metrics.h"
#include "storage/fetch/arena.h"
#include "storage/fetch/block_io.h"
#include "storage/fetch/event_queue.h"
#include "storage/fetch/fetch_core.h"
#include "storage/fetch/fetch_metrics.h"

namespace millrace::storage::fetch {

/// Where the loop's words for engines go. Called on the loop's thread; must not block.
class SessionSink {
 public:
  virtual ~SessionSink() = default;
  /// What one turn of the loop has for a session, in order.
  virtual void deliver(SessionId session, std::vector<SessionEvent> events) = 0;
  virtual void refuse(SessionId session, const std::string& reason) = 0;
  /// The loop has let go of everything that the session had.
  virtual void on_closed(SessionId session) = 0;
};

struct FetchArenas {
  Arena read;
  Arena write;
};

/// FetchCore with a thread, a clock, the arenas and the store.
class FetchLoop {
 public:
  /// Begins to run. `queue`, `sink` and `registry` must outlive it.
  FetchLoop(const FetchLimits& limits, std::uint32_t block_bytes, FetchArenas arenas,
            std::unique_ptr<BlockIo> io, EventQueue& queue, SessionSink& sink, Registry& registry);
  /// Ends the thread, then the store with all that is under way, then the arenas.
  ~FetchLoop();

  /// No fetch is open, no read or store under way; as of a moment ago. Any thread.
  bool is_idle() const { return is_idle_.load(std::memory_order_acquire); }

 private:
  void run();
  void handle(FetchEvent event, TimePoint now);
  void perform(const StartRead& action, TimePoint now);
  void perform(const PublishSlot& action, TimePoint now);
  void perform(const RetireSlot& action, TimePoint now);
  void perform(const OpenSlot& action, TimePoint now);
  void perform(const StartStore& action, TimePoint now);
  void perform(Tell& action, TimePoint now);
  void perform(const RefuseSession& action, TimePoint now);
  void perform(const MeasureFetch& action, TimePoint now);
  void deliver();

  EventQueue& queue_;
  SessionSink& sink_;
  FetchArenas arenas_;  // outlive io_: reads land in them
  std::unique_ptr<BlockIo> io_;
  FetchCore core_;
  FetchMetrics metrics_;
  std::map<SessionId, std::vector<SessionEvent>> outbox_;  // of this turn
  std::atomic<bool> is_idle_{true};
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace millrace::storage::fetch
