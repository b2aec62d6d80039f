#pragma once

#include <cstddef>

namespace millrace::dataplane::engine::cpu {

/// y = x · wᵀ, out of strided rows.
///
/// y[m][n] is a sum over k in 16 lanes: lane j adds x[m][k]·w[n][k] for k = j, j + 16, … by fused
/// multiply-add; then lane i += lane i + 8, + 4, + 2, + 1. Every y is computed this way whatever m
/// and n are, so a row's bits do not depend on its batch.
struct MatmulShape {
  const float* x;
  std::size_t x_stride;
  int rows;
  const float* w;
  std::size_t w_stride;
  int outputs;
  int inputs;
  float* y;
  std::size_t y_stride;
};

/// out[h][c] += Σ_t p[h][t]·v[t][c], t ascending, by fused multiply-add.
struct WeightedSumShape {
  const float* p;
  std::size_t p_stride;
  int heads;
  const float* v;
  std::size_t v_stride;
  int count;
  int width;
  float* out;  ///< [heads, width] dense
};

/// The two loops that take most of the time, once for every instruction set. All tables give equal
/// bits.
struct Kernels {
  const char* name;
  void (*matmul)(const MatmulShape& shape);
  void (*weighted_sum)(const WeightedSumShape& shape);
};

/// Plain C++: the definition, and the fallback.
const Kernels& portable_kernels();
/// AVX-512, or null where the CPU has none.
const Kernels* avx512_kernels();
/// The fastest one that this CPU runs.
const Kernels& best_kernels();

}  // namespace millrace::dataplane::engine::cpu
