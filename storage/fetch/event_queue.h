#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <vector>

#include "storage/fetch/fetch_types.h"

namespace millrace::storage::fetch {

struct EventQueueLimits {
  std::size_t max_commands = 16384;
  std::size_t max_keys = std::size_t{1} << 20;  ///< of commands together
};

/// Everything that reaches the fetcher's thread, in order of arrival. Any thread pushes; one pops.
///
/// What engines send is bounded and may be refused. What must not be lost (sessions, reads and
/// stores that are over) always finds room: there is no more of it than sessions, reads in flight
/// and write slots.
class EventQueue {
 public:
  explicit EventQueue(const EventQueueLimits& limits) : limits_(limits) {}

  /// False when full: the command is then untouched.
  bool try_push_command(FetchEvent&& command);
  void push(FetchEvent&& event);

  /// Everything queued; waits at most that long for something to come. Empty at the timeout or
  /// after wake().
  std::vector<FetchEvent> pop_all(std::chrono::nanoseconds timeout);
  /// Makes the current or next pop_all() return at once.
  void wake();

 private:
  const EventQueueLimits limits_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<FetchEvent> queue_;  // guarded by mutex_, like all below
  std::size_t command_count_ = 0;
  std::size_t key_count_ = 0;
  bool is_woken_ = false;
};

}  // namespace millrace::storage::fetch
