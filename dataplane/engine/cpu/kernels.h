#pragma once

#include <cstddef>

#include "dataplane/engine/cpu/row_kernels.h"
#include "dataplane/engine/ops.h"

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
  Rounding rounding;
  float* y;
  std::size_t y_stride;
};

/// The same product with outputs [first_output, first_output + outputs) of a matrix as it is
/// stored.
struct PackedMatmulShape {
  const float* x;
  std::size_t x_stride;
  int rows;
  const WeightMatrix* weight;
  int first_output;
  int outputs;
  Rounding rounding;
  float* y;  ///< y[m][0] is output first_output
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

/// The loops that take most of the time, once for every instruction set. All tables give equal
/// bits.
struct Kernels {
  const char* name;
  void (*matmul)(const MatmulShape& shape);
  /// Decodes on the way from memory to the multiply-add: for few rows, where reading weights is the
  /// cost.
  void (*packed_matmul)(const PackedMatmulShape& shape);
  /// Rows [first, first + count) of a matrix as float32 [count, inputs]: for many rows, which share
  /// the work.
  void (*decode)(const WeightMatrix& weight, int first, int count, float* out);
  void (*weighted_sum)(const WeightedSumShape& shape);
  const RowKernels& (*rows)();
};

/// Plain C++: the definition, and the fallback.
const Kernels& portable_kernels();
/// AVX-512 (F, BW, DQ, VL), or null where the CPU has it not.
const Kernels* avx512_kernels();
/// The fastest one that this CPU runs.
const Kernels& best_kernels();

}  // namespace millrace::dataplane::engine::cpu
