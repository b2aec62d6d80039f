#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/metrics/metrics.h"
#include "storage/fetch/arena.h"
#include "storage/fetch/block_io.h"
#include "storage/fetch/event_queue.h"
#include "storage/fetch/fetch_core.h"
#include "storage/fetch/fetch_metrics.h"
#include "storage/fetch/window_core.h"
#include "storage/fetch/window_metrics.h"
#include "storage/fetch/window_peers.h"

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
  std::optional<Arena> window;  ///< absent: no windows are kept
};

/// What the fetcher of a machine is to do, and with what.
struct FetchLoopConfig {
  FetchLimits limits;
  std::uint32_t block_bytes = 0;
  WindowLimits windows;  ///< its slots are those of the window arena
  WindowOwner owner;
};

/// FetchCore and WindowCore with a thread, a clock, the arenas and the store.
class FetchLoop {
 public:
  /// Begins to run. `queue`, `sink` and `registry` must outlive it.
  FetchLoop(const FetchLoopConfig& config, FetchArenas arenas, std::unique_ptr<BlockIo> io,
            std::unique_ptr<WindowPeers> peers, EventQueue& queue, SessionSink& sink,
            Registry& registry);
  /// Ends the thread, then the store and the peers with all that is under way, then the arenas.
  ~FetchLoop();

  /// No fetch is open, no read or store of a block or window under way; as of a moment ago. Any
  /// thread.
  bool is_idle() const { return is_idle_.load(std::memory_order_acquire); }

 private:
  void run();
  void handle(FetchEvent event, TimePoint now);
  void handle(WindowEvent event, TimePoint now);
  void perform_all(WindowActions actions, TimePoint now);
  std::optional<TimePoint> next_timer() const;
  void perform(const StartRead& action, TimePoint now);
  void perform(const PublishSlot& action, TimePoint now);
  void perform(const RetireSlot& action, TimePoint now);
  void perform(const OpenSlot& action, TimePoint now);
  void perform(const StartStore& action, TimePoint now);
  void perform(Tell& action, TimePoint now);
  void perform(const RefuseSession& action, TimePoint now);
  void perform(const MeasureFetch& action, TimePoint now);
  void perform(const FillWindow& action, TimePoint now);
  void perform(const RetireWindow& action, TimePoint now);
  void perform(const StartPeerRead& action, TimePoint now);
  void publish_metrics();
  void deliver();

  EventQueue& queue_;
  SessionSink& sink_;
  FetchArenas arenas_;  // outlive io_: reads land in them
  std::unique_ptr<BlockIo> io_;
  std::unique_ptr<WindowPeers> peers_;
  FetchCore core_;
  WindowCore windows_;
  FetchMetrics metrics_;
  WindowMetrics window_metrics_;
  std::map<SessionId, std::vector<SessionEvent>> outbox_;  // of this turn
  std::atomic<bool> is_idle_{true};
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace millrace::storage::fetch
