#pragma once

#include <cstddef>
#include <random>
#include <vector>

// What the tests of kernels and ops share.
namespace millrace::dataplane::engine {

/// `count` values evenly spread over [-scale, scale), the same for the same seed.
inline std::vector<float> random_values(std::size_t count, unsigned seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& x : values) x = (static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f) * scale;
  return values;
}

inline std::size_t size(int n) { return static_cast<std::size_t>(n); }

}  // namespace millrace::dataplane::engine
