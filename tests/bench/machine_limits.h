#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/bench/stopwatch.h"

namespace millrace::tests::bench {

/// What this machine can do at most, measured here and now with the same number of threads as the
/// engine.

/// Float32 operations per second (a fused multiply-add counts as two) of independent fused
/// multiply-adds that stay in registers: no real product can be faster. 512-bit vectors where the
/// CPU has them, else whatever the compiler makes of scalars.
double peak_flops(int threads, ClockKind clock);

/// Bytes per second of summing a buffer much larger than the caches, every thread its own part.
class ReadBandwidth {
 public:
  ReadBandwidth(int threads, std::size_t bytes);
  double measure(ClockKind clock) const;

 private:
  int threads_;
  std::vector<std::uint64_t> buffer_;
};

}  // namespace millrace::tests::bench
