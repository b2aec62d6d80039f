#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "dataplane/worker/command.h"

namespace millrace::dataplane::worker {

struct CommandQueueLimits {
  std::size_t max_requests = 1024;            ///< StartPrefill, StartDecode and Cancel
  std::int64_t max_request_tokens = 8 << 20;  ///< of their token lists together
  std::size_t max_control = 4096;             ///< everything else; its senders bound themselves
};

/// Everything that reaches the engine thread, in order of arrival. Any thread pushes; one pops.
///
/// What peers ask for is bounded and may be refused. What the worker itself must not lose (streams
/// opened and closed, imports done, drain) has room of its own: its senders cannot have more under
/// way than max_control, which is checked.
class CommandQueue {
 public:
  explicit CommandQueue(const CommandQueueLimits& limits) : limits_(limits) {}

  /// False when full: the command is then untouched.
  bool try_push(Command&& command);
  void push_control(Command&& command);

  /// Everything queued; waits at most that long for something to come. Empty at the timeout or
  /// after wake().
  std::vector<Command> pop_all(std::chrono::nanoseconds timeout);
  /// Makes the current or next pop_all() return at once.
  void wake();

 private:
  const CommandQueueLimits limits_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<Command> queue_;  // guarded by mutex_, like all below
  std::size_t request_count_ = 0;
  std::int64_t request_tokens_ = 0;
  bool is_woken_ = false;
};

}  // namespace millrace::dataplane::worker
