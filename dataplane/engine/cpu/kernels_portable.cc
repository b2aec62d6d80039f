#include <array>
#include <cmath>

#include "dataplane/engine/cpu/kernels.h"

namespace millrace::dataplane::engine::cpu {
namespace {

constexpr std::size_t kLanes = 16;

float dot(const float* x, const float* w, std::size_t count) {
  std::array<float, kLanes> lanes{};
  for (std::size_t k = 0; k < count; ++k) {
    lanes[k % kLanes] = std::fma(x[k], w[k], lanes[k % kLanes]);
  }
  for (std::size_t distance = kLanes / 2; distance > 0; distance /= 2) {
    for (std::size_t i = 0; i < distance; ++i) lanes[i] += lanes[i + distance];
  }
  return lanes[0];
}

void matmul(const MatmulShape& s) {
  for (std::size_t m = 0; m < static_cast<std::size_t>(s.rows); ++m) {
    for (std::size_t n = 0; n < static_cast<std::size_t>(s.outputs); ++n) {
      s.y[m * s.y_stride + n] =
          dot(s.x + m * s.x_stride, s.w + n * s.w_stride, static_cast<std::size_t>(s.inputs));
    }
  }
}

void weighted_sum(const WeightedSumShape& s) {
  const auto width = static_cast<std::size_t>(s.width);
  for (std::size_t h = 0; h < static_cast<std::size_t>(s.heads); ++h) {
    float* out = s.out + h * width;
    for (std::size_t t = 0; t < static_cast<std::size_t>(s.count); ++t) {
      const float p = s.p[h * s.p_stride + t];
      const float* v = s.v + t * s.v_stride;
      for (std::size_t c = 0; c < width; ++c) out[c] = std::fma(p, v[c], out[c]);
    }
  }
}

constexpr Kernels kPortable{"portable", matmul, weighted_sum};

}  // namespace

const Kernels& portable_kernels() { return kPortable; }

const Kernels& best_kernels() {
  const Kernels* fast = avx512_kernels();
  return fast != nullptr ? *fast : kPortable;
}

}  // namespace millrace::dataplane::engine::cpu
