#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/sim/cluster/scenario.h"

namespace millrace::sim {

/// Something that happens; what `a` and `b` are depends on the kind.
struct Event {
  SimTime at = 0;
  std::uint64_t order = 0;  ///< given by the heap: equal times keep the order of scheduling
  std::uint8_t kind = 0;
  std::uint32_t a = 0;
  std::uint32_t b = 0;
};

/// Events by time; a heap of four children a node, which a run spends its time in.
class EventHeap {
 public:
  bool is_empty() const { return events_.empty(); }
  const Event& top() const { return events_.front(); }

  void push(Event event) {
    event.order = next_order_++;
    std::size_t hole = events_.size();
    events_.push_back(event);
    while (hole > 0) {
      const std::size_t parent = (hole - 1) / 4;
      if (!is_before(event, events_[parent])) break;
      events_[hole] = events_[parent];
      hole = parent;
    }
    events_[hole] = event;
  }

  Event pop() {
    const Event first = events_.front();
    const Event last = events_.back();
    events_.pop_back();
    if (!events_.empty()) sift(last);
    return first;
  }

 private:
  static bool is_before(const Event& a, const Event& b) {
    return a.at != b.at ? a.at < b.at : a.order < b.order;
  }

  void sift(const Event& event) {
    std::size_t hole = 0;
    while (true) {
      const std::size_t begin = hole * 4 + 1;
      if (begin >= events_.size()) break;
      const std::size_t end = begin + 4 < events_.size() ? begin + 4 : events_.size();
      std::size_t least = begin;
      for (std::size_t child = begin + 1; child < end; ++child) {
        if (is_before(events_[child], events_[least])) least = child;
      }
      if (!is_before(events_[least], event)) break;
      events_[hole] = events_[least];
      hole = least;
    }
    events_[hole] = event;
  }

  std::vector<Event> events_;
  std::uint64_t next_order_ = 0;
};

}  // namespace millrace::sim
