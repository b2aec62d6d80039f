#pragma once

#include <ctime>

namespace millrace::tests::bench {

/// What a measurement counts. On a machine that does other work too, the time that the one
/// measuring thread spent on a core tells what the code costs; it says nothing about several
/// threads.
enum class ClockKind { kWall, kCpu };

/// Runs from its construction on.
class Stopwatch {
 public:
  explicit Stopwatch(ClockKind kind)
      : clock_(kind == ClockKind::kWall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID),
        start_(now()) {}

  double seconds() const { return now() - start_; }

 private:
  double now() const {
    timespec time;
    ::clock_gettime(clock_, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }

  clockid_t clock_;
  double start_;
};

}  // namespace millrace::tests::bench
