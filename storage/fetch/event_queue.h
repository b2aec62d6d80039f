#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "storage/fetch/window_types.h"

namespace millrace::storage::fetch {

struct EventQueueLimits {
  std::size_t max_commands = 16384;
  std::size_t max_keys = std::size_t{1} << 20;           ///< of commands together
  std::size_t max_window_bytes = std::size_t{64} << 20;  ///< of windows that engines put
};

/// Everything that reaches the fetcher's thread, in order of arrival. Any thread pushes; one pops.
///
/// What engines send is bounded and may be refused. What must not be lost (sessions, reads and
/// stores that are over) always finds room: there is no more of it than sessions, reads in flight
/// (from other machines, too) and write slots.
class EventQueue {
 public:
  explicit EventQueue(const EventQueueLimits& limits) : limits_(limits) {}

  /// False when full: the command is then untouched.
  bool try_push_command(LoopEvent&& command);
  void push(LoopEvent&& event);

  /// Everything queued; waits at most that long for something to come. Empty at the timeout or
  /// after wake().
  std::vector<LoopEvent> pop_all(std::chrono::nanoseconds timeout);
  /// Makes the current or next pop_all() return at once.
  void wake();
  /// Windows that were refused so far.
  std::uint64_t refused_windows() const;

 private:
  const EventQueueLimits limits_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<LoopEvent> queue_;  // guarded by mutex_, like all below
  std::size_t command_count_ = 0;
  std::size_t key_count_ = 0;
  std::size_t window_bytes_ = 0;
  std::uint64_t refused_windows_ = 0;
  bool is_woken_ = false;
};

}  // namespace millrace::storage::fetch
