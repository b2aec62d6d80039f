#include "tests/bench/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "dataplane/engine/cpu/avx512.h"

namespace millrace::tests::bench {
namespace {

constexpr int kAccumulators = 24;  // enough to hide the latency of two units
constexpr int kRounds =
    5'000'000;  // tens of milliseconds, beside which starting a thread is nothing
constexpr int kRepeats = 3;

/// Seconds from the first thread's start to the last one's end, best of a few tries.
double best_seconds(int threads, ClockKind clock, const std::function<void(int thread)>& work) {
  double best = 1e30;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const Stopwatch watch(clock);
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work, i);
    work(0);
    for (std::thread& thread : others) thread.join();
    best = std::min(best, watch.seconds());
  }
  return best;
}

/// Keeps results alive for the optimiser.
std::atomic<float> float_sink;
std::atomic<std::uint64_t> integer_sink;

#if defined(__x86_64__)

__attribute__((target("avx512f"))) void multiply_add_512() {
  __m512 sums[kAccumulators];
  // Different values, or the compiler would see that one sum is enough.
#pragma GCC unroll 24
  for (int i = 0; i < kAccumulators; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 x = _mm512_set1_ps(0.999f);
  const __m512 y = _mm512_set1_ps(1e-3f);
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 24
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, x, y);
  }
  float total = 0;
  for (const __m512& sum : sums) total += _mm512_reduce_add_ps(sum);
  float_sink = total;
}

__attribute__((target("avx512f"))) std::uint64_t sum_512(const std::uint64_t* words,
                                                         std::size_t count) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (std::size_t i = 0; i + 32 <= count; i += 32) {
    a = _mm512_add_epi64(a, _mm512_loadu_si512(words + i));
    b = _mm512_add_epi64(b, _mm512_loadu_si512(words + i + 8));
    c = _mm512_add_epi64(c, _mm512_loadu_si512(words + i + 16));
    d = _mm512_add_epi64(d, _mm512_loadu_si512(words + i + 24));
  }
  return static_cast<std::uint64_t>(
      _mm512_reduce_add_epi64(_mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d))));
}

bool has_512() { return __builtin_cpu_supports("avx512f") != 0; }

#else

void multiply_add_512() {}
std::uint64_t sum_512(const std::uint64_t*, std::size_t) { return 0; }
bool has_512() { return false; }

#endif

void multiply_add_scalar() {
  float sums[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) sums[i] = static_cast<float>(i);
  for (int round = 0; round < kRounds; ++round) {
    for (float& sum : sums) sum = std::fma(sum, 0.999f, 1e-3f);
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  float_sink = total;
}

std::uint64_t sum_scalar(const std::uint64_t* words, std::size_t count) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < count; ++i) total += words[i];
  return total;
}

}  // namespace

double peak_flops(int threads, ClockKind clock) {
  const bool wide = has_512();
  const double seconds = best_seconds(threads, clock, [wide](int) {
    if (wide) {
      multiply_add_512();
    } else {
      multiply_add_scalar();
    }
  });
  const double lanes = wide ? 16 : 1;
  return 2.0 * lanes * kAccumulators * kRounds * threads / seconds;
}

ReadBandwidth::ReadBandwidth(int threads, std::size_t bytes)
    : threads_(threads), buffer_(bytes / sizeof(std::uint64_t), 1) {}

double ReadBandwidth::measure(ClockKind clock) const {
  const std::size_t share = buffer_.size() / static_cast<std::size_t>(threads_);
  const bool wide = has_512();
  const double seconds = best_seconds(threads_, clock, [&](int thread) {
    const std::uint64_t* first = buffer_.data() + share * static_cast<std::size_t>(thread);
    integer_sink = wide ? sum_512(first, share) : sum_scalar(first, share);
  });
  return static_cast<double>(share * static_cast<std::size_t>(threads_) * sizeof(std::uint64_t)) /
         seconds;
}

}  // namespace millrace::tests::bench
