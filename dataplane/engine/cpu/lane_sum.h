#pragma once

#include <array>
#include <cmath>
#include <cstddef>

namespace millrace::dataplane::engine::cpu {

/// The sum that every product is (kernels.h), in plain C++: the definition that vector code has to
/// meet.
class LaneSum {
 public:
  static constexpr std::size_t kLanes = 16;

  void add(std::size_t k, float x, float w) {
    lanes_[k % kLanes] = std::fma(x, w, lanes_[k % kLanes]);
  }
  float total() {
    for (std::size_t distance = kLanes / 2; distance > 0; distance /= 2) {
      for (std::size_t i = 0; i < distance; ++i) lanes_[i] += lanes_[i + distance];
    }
    return lanes_[0];
  }

 private:
  std::array<float, kLanes> lanes_{};
};

}  // namespace millrace::dataplane::engine::cpu
