#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace millrace {

/// A bounded queue of values between threads. Any thread may push or pop; close() wakes all
/// waiters. A full mailbox refuses: it never grows past its capacity.
template <typename T>
class Mailbox {
 public:
  explicit Mailbox(std::size_t capacity) : capacity_(capacity) {}

  /// False when full or closed; the value is then untouched.
  bool try_push(T&& value) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || queue_.size() >= capacity_) return false;
      queue_.push_back(std::move(value));
    }
    ready_.notify_one();
    return true;
  }

  /// The next value, without waiting.
  std::optional<T> try_pop() {
    std::lock_guard lock(mutex_);
    return take();
  }

  /// The next value; nullopt at the timeout, or at once when closed and empty.
  std::optional<T> pop_for(std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, timeout, [&] { return closed_ || !queue_.empty(); });
    return take();
  }

  /// The next value; waits until there is one. nullopt means closed and empty.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return closed_ || !queue_.empty(); });
    return take();
  }

  /// No more pushes; what is queued can still be popped.
  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

  std::size_t size() const {
    std::lock_guard lock(mutex_);
    return queue_.size();
  }

  bool is_closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  std::optional<T> take() {
    if (queue_.empty()) return std::nullopt;
    std::optional<T> value(std::move(queue_.front()));
    queue_.pop_front();
    return value;
  }

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<T> queue_;  // guarded by mutex_
  bool closed_ = false;  // guarded by mutex_
};

}  // namespace millrace
