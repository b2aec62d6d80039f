#pragma once

#include <chrono>

namespace millrace {

/// A monotonic time as decisions receive it: they never read a clock. It means nothing outside its
/// process; between processes durations travel.
using TimePoint = std::chrono::steady_clock::time_point;

}  // namespace millrace
