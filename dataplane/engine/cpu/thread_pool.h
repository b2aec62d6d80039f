#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace millrace::dataplane::engine::cpu {

/// A fixed set of threads that share the tasks of one loop at a time.
///
/// The thread that calls run() works too, so a pool of one has no thread of its own. Between loops
/// the others spin for some tens of microseconds, as long as the serial parts of a step take, and
/// then sleep; a loop never waits for a thread that has not begun a task, so a busy machine costs
/// no more than the threads it did not lend.
///
/// Which thread runs which task is left to chance: tasks must write disjoint memory, and results
/// then do not depend on the number of threads. run() is for one calling thread at a time and not
/// reentrant.
class ThreadPool {
 public:
  /// threads, the calling one included; at least 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls task(index, thread) for every index in [0, count), thread in [0, threads()), and returns
  /// when all are done. Does not allocate.
  template <typename Task>
  void run(int count, Task&& task) {
    if (workers_.empty() || count < 2) {
      for (int index = 0; index < count; ++index) task(index, 0);
      return;
    }
    start(
        count,
        [](void* context, int index, int thread) { (*static_cast<Task*>(context))(index, thread); },
        const_cast<void*>(static_cast<const void*>(&task)));
  }

 private:
  using Call = void (*)(void* context, int index, int thread);

  void start(int count, Call call, void* context);
  void work(int thread);
  /// Runs tasks of a loop until none is left to begin.
  void take_tasks(std::uint32_t loop, int thread);

  // The loop under way. A late thread may look at these while the next loop is set up, hence
  // atomics; it acts on them only after it has taken a ticket. A ticket is taken from a loop that
  // has tasks left, which the one word proves, and start() does not return before such a task is
  // done: what was read between is that loop's.
  std::atomic<Call> call_ = nullptr;
  std::atomic<void*> context_ = nullptr;
  std::atomic<std::uint32_t> count_ = 0;
  /// Number of the loop in the upper half, tasks left to begin in the lower.
  std::atomic<std::uint64_t> ticket_ = 0;
  std::atomic<std::uint32_t> done_ = 0;  ///< tasks finished
  std::atomic<std::uint32_t> loop_ = 0;  ///< number of the loop, for waiting
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace millrace::dataplane::engine::cpu
