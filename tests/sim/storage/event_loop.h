#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "common/time_point.h"

namespace millrace::storage::sim {

/// Virtual time: what is to happen, in order of time, then of posting. One thread.
class EventLoop {
 public:
  using Job = std::function<void()>;

  TimePoint now() const { return now_; }

  void post(std::chrono::nanoseconds delay, Job job) {
    events_.push_back({now_ + delay, ++last_sequence_, std::move(job)});
    std::push_heap(events_.begin(), events_.end(), is_later);
  }

  /// Does what is due next. False: nothing is before `end`, which is the time now.
  bool run_next(TimePoint end) {
    if (events_.empty() || events_.front().at > end) {
      now_ = std::max(now_, end);
      return false;
    }
    std::pop_heap(events_.begin(), events_.end(), is_later);
    const Event event = std::move(events_.back());
    events_.pop_back();
    now_ = std::max(now_, event.at);
    ++done_;
    event.job();
    return true;
  }

  std::uint64_t events_done() const { return done_; }

 private:
  struct Event {
    TimePoint at;
    std::uint64_t sequence = 0;
    Job job;
  };
  static bool is_later(const Event& a, const Event& b) {
    return a.at != b.at ? a.at > b.at : a.sequence > b.sequence;
  }

  TimePoint now_ = TimePoint() + std::chrono::hours(1000);
  std::uint64_t last_sequence_ = 0;
  std::uint64_t done_ = 0;
  std::vector<Event> events_;
};

}  // namespace millrace::storage::sim
