#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "common/time_point.h"

namespace millrace::storage::node {

/// Keeps background work to a rate: what was done delays what comes next. Pure; one thread.
class Pace {
 public:
  explicit Pace(std::uint64_t bytes_per_second)
      : bytes_per_second_(std::max<std::uint64_t>(bytes_per_second, 1)) {}

  bool is_due(TimePoint now) const { return now >= next_; }

  void spend(std::uint64_t bytes, TimePoint now) {
    const double seconds = static_cast<double>(bytes) / static_cast<double>(bytes_per_second_);
    // Time that nothing was done in is not saved up.
    next_ = std::max(next_, now) +
            std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(seconds));
  }

 private:
  const std::uint64_t bytes_per_second_;
  TimePoint next_ = TimePoint::min();
};

}  // namespace millrace::storage::node
