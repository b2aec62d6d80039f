#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace::api::tokenizer {

/// Threads that help whoever encodes. A caller always works itself, so calls from any number of
/// threads make progress, and what is queued is one loop for each thread that waits in run().
class EncodePool {
 public:
  /// With no helpers run() is a plain loop.
  explicit EncodePool(int helpers);
  /// Joins the helpers; nobody may be in run().
  ~EncodePool();
  EncodePool(const EncodePool&) = delete;
  EncodePool& operator=(const EncodePool&) = delete;

  /// Calls work(i) once for each i in [0, count), on this thread and free helpers, in no order.
  /// Returns when all calls have returned. work must not throw and not call run() of this pool.
  void run(std::size_t count, const std::function<void(std::size_t)>& work);

 private:
  struct Loop;
  void help();

  std::mutex mutex_;  // guards the rest and the loops that loops_ points to
  std::condition_variable work_arrived_;
  std::condition_variable helper_left_;
  std::vector<Loop*> loops_;  // those with calls that nobody has begun
  bool is_closing_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace millrace::api::tokenizer
