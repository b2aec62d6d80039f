#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

#include "common/time_point.h"
#include "storage/disk/slot_io.h"
#include "storage/wire/messages.h"

namespace millrace::storage::node {

/// A request on its way to its target's thread.
struct QueuedRequest {
  ShardOperation operation;
  ShardReplyCallback done;
  TimePoint overdue_at;
};
struct PeerReply {
  std::uint64_t opening = 0;  ///< which time the target that asked was opened
  std::uint64_t call_id = 0;
  ShardReply reply;
};
struct ScrubWish {
  std::uint64_t request = 0;
};
struct EvictWish {
  std::uint64_t request = 0;
  double fraction = 0;
};
/// What a target's thread owes an ear to: each is the answer to something of its own, or rare, so
/// that their number is bounded by what it may have in flight.
using OwedEvent = std::variant<std::vector<disk::SlotCompletion>, PeerReply, ScrubWish, EvictWish>;

/// The mailbox of a target's thread: requests are refused when there are too many, answers never.
/// Any thread pushes, one takes.
class EventQueue {
 public:
  explicit EventQueue(std::size_t capacity) : capacity_(capacity) {}

  struct Batch {
    std::vector<QueuedRequest> requests;
    std::vector<OwedEvent> owed;
    bool is_closed = false;  ///< no more requests come
    bool is_last = false;    ///< nor are any left
  };

  /// Moves from the request. False: full or closed, and the request is untouched.
  bool push(QueuedRequest& request) {
    {
      std::lock_guard lock(mutex_);
      if (is_closed_ || requests_.size() >= capacity_) return false;
      requests_.push_back(std::move(request));
    }
    ready_.notify_one();
    return true;
  }
  void push(OwedEvent&& event) {
    {
      std::lock_guard lock(mutex_);
      owed_.push_back(std::move(event));
    }
    ready_.notify_one();
  }
  /// No more requests.
  void close() {
    {
      std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    ready_.notify_one();
  }

  /// What is there, at most `max_requests` of them; waits for something, or for the timeout.
  Batch take(std::size_t max_requests, std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, timeout,
                    [&] { return is_closed_ || !requests_.empty() || !owed_.empty(); });
    Batch batch;
    batch.is_closed = is_closed_;
    batch.owed = std::exchange(owed_, {});
    while (!requests_.empty() && batch.requests.size() < max_requests) {
      batch.requests.push_back(std::move(requests_.front()));
      requests_.pop_front();
    }
    batch.is_last = is_closed_ && requests_.empty();
    return batch;
  }

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<QueuedRequest> requests_;  // guarded by mutex_
  std::vector<OwedEvent> owed_;         // guarded by mutex_
  bool is_closed_ = false;              // guarded by mutex_
};

}  // namespace millrace::storage::node
