#pragma once

#include <cstddef>
#include <cstdint>

#include "dataplane/engine/ops.h"

namespace millrace::dataplane::engine::cpu {

/// out[c] = weight[c]·(x[c]·factor), factor = 1/√(mean square + eps). out may be x.
struct RmsNormRow {
  const float* x;
  const float* weight;
  int width;
  float eps;
  Rounding rounding;
  float* out;
};

/// As CollapseArgs and ExpandArgs, one row.
struct CollapseRow {
  const float* a;
  const float* stream;
  int copies, width;
  Rounding rounding;
  float* out;
};
inline constexpr int kExpandStrip = 64;
struct ExpandRow {
  const float* p;
  const float* c;
  const float* y;
  int copies, width;
  Rounding rounding;
  float* before;  ///< scratch [copies, kExpandStrip]
  float* stream;
};

/// As RopeArgs, the rotated channels of one head; sign turns the other way.
struct RopeRow {
  const float* cosine;
  const float* sine;
  float sign;
  int pairs;
  Rounding rounding;
  float* x;  ///< [2·pairs]
};

/// As SwigluArgs, one row.
struct SwigluRow {
  const float* g;
  const float* u;
  int width;
  float weight, limit;
  Rounding rounding;
  float* out;
};

/// Block-quantized E2M1 codes of one row: Q4g (16 channels, E4M3 scales) or Q4i (32, E8M0).
enum class Q4Kind { kQ4g, kQ4i };
struct Q4Row {
  Q4Kind kind;
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  int width;
  float* out;
};

/// Work on one row at a time, once for every instruction set. All tables give equal bits: sums over
/// channels run in 16 lanes as in a product (kernels.h), everything else is elementwise.
struct RowKernels {
  /// The sum of products in the order of a matrix product.
  float (*dot)(const float* x, const float* y, int count);
  void (*rms_norm)(const RmsNormRow& row);
  void (*collapse)(const CollapseRow& row);
  void (*expand)(const ExpandRow& row);
  void (*rope)(const RopeRow& row);
  void (*swiglu)(const SwigluRow& row);
  /// Turns scores into weights e^(scale·score − largest) in place and returns their sum plus that
  /// of the sink, by which a weighted sum has to be divided.
  float (*softmax)(float* scores, int count, float scale, float sink);
  /// Rounds through Q8 in place; the width is a multiple of its block.
  void (*round_q8)(float* x, int width);
  void (*unpack_q4)(const Q4Row& row);
};

const RowKernels& portable_row_kernels();
/// Only where avx512_kernels() is not null.
const RowKernels& avx512_row_kernels();

}  // namespace millrace::dataplane::engine::cpu
