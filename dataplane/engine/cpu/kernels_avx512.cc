#include <algorithm>
#include <cstdint>
#include <cstring>

#include "dataplane/engine/cpu/avx512.h"
#include "dataplane/engine/cpu/kernels.h"

#if defined(__x86_64__)

#include "dataplane/engine/cpu/avx512_weights.h"

namespace millrace::dataplane::engine::cpu {
namespace {

constexpr std::size_t kTileOutputs = 4;
/// Rows of a tile: 24 sums, 4 weights and a row of x fit the 32 registers, and 24 independent sums
/// hide the latency of two multiply-add units three times.
constexpr std::size_t kTileRows = 6;

/// Adds lanes at distances 8 and 4 of four vectors: the result's 128-bit part i holds four partial
/// sums of vector i.
MILLRACE_AVX512_INLINE __m512 fold_to_quarters(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab =
      _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  const __m512 cd =
      _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
}

/// Adds lanes at distances 2 and 1 of four such vectors: part i, element j is the sum of the vector
/// that was argument i of the call that made argument j.
MILLRACE_AVX512_INLINE __m512 fold_quarters(__m512 x, __m512 y, __m512 z, __m512 w) {
  const __m512 xy = _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xEE));
  const __m512 zw = _mm512_add_ps(_mm512_shuffle_ps(z, w, 0x44), _mm512_shuffle_ps(z, w, 0xEE));
  return _mm512_add_ps(_mm512_shuffle_ps(xy, zw, 0x88), _mm512_shuffle_ps(xy, zw, 0xDD));
}

MILLRACE_AVX512_INLINE __m512 round_to_bf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  return _mm512_castsi512_ps(
      _mm512_and_si512(sum, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
}

/// Where a tile writes.
struct Target {
  float* y;
  std::size_t stride;
  __mmask8 outputs;  ///< which of the four
  Rounding rounding;
};

/// Writes sums of up to four rows: quarters[j] holds those of output j.
template <int Rows>
MILLRACE_AVX512_INLINE void store_rows(const __m512 (&quarters)[4], const Target& t, float* y) {
  __m512 sums = fold_quarters(quarters[0], quarters[1], quarters[2], quarters[3]);
  if (t.rounding == Rounding::kBf16) sums = round_to_bf16(sums);
  _mm_mask_storeu_ps(y, t.outputs, _mm512_extractf32x4_ps(sums, 0));
  if constexpr (Rows > 1) {
    _mm_mask_storeu_ps(y + t.stride, t.outputs, _mm512_extractf32x4_ps(sums, 1));
  }
  if constexpr (Rows > 2) {
    _mm_mask_storeu_ps(y + 2 * t.stride, t.outputs, _mm512_extractf32x4_ps(sums, 2));
  }
  if constexpr (Rows > 3) {
    _mm_mask_storeu_ps(y + 3 * t.stride, t.outputs, _mm512_extractf32x4_ps(sums, 3));
  }
}

/// `Rows` rows by four outputs.
template <int Rows, typename Weights>
MILLRACE_AVX512 void tile(const float* x, std::size_t x_stride, Weights w, std::size_t inputs,
                          const Target& target) {
  __m512 sums[Rows][4];
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sums[i][j] = _mm512_setzero_ps();
  }
  const auto step = [&](std::size_t k)
      __attribute__((target(MILLRACE_AVX512_TARGET), always_inline)) {
    __m512 weights[4];
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j) weights[j] = w.load(j, k);
#pragma GCC unroll 6
    for (std::size_t i = 0; i < Rows; ++i) {
      const __m512 values = _mm512_loadu_ps(x + i * x_stride + k);
#pragma GCC unroll 4
      for (std::size_t j = 0; j < 4; ++j) {
        sums[i][j] = _mm512_fmadd_ps(values, weights[j], sums[i][j]);
      }
    }
  };
  std::size_t k = 0;
  for (; k + 2 * kLanes <= inputs; k += 2 * kLanes) {
    w.start_block(k);
    step(k);
    step(k + kLanes);
  }
  if (k < inputs) w.start_block(k);
  if (k + kLanes <= inputs) {
    step(k);
    k += kLanes;
  }
  if (k < inputs) {
    const __mmask16 mask = first_lanes(inputs - k);
    // Masked: lanes beyond the end add nothing, not even a zero.
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j) {
      const __m512 weights = w.load_some(j, k, inputs - k);
#pragma GCC unroll 6
      for (std::size_t i = 0; i < Rows; ++i) {
        const __m512 values = _mm512_maskz_loadu_ps(mask, x + i * x_stride + k);
        sums[i][j] = _mm512_mask3_fmadd_ps(values, weights, sums[i][j], mask);
      }
    }
  }
  constexpr int kFirst = std::min(Rows, 4);
  __m512 quarters[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    quarters[j] =
        fold_to_quarters(sums[0][j], sums[1 % kFirst][j], sums[2 % kFirst][j], sums[3 % kFirst][j]);
  }
  store_rows<kFirst>(quarters, target, target.y);
  if constexpr (Rows > 4) {
    constexpr int kOther = Rows - 1;
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      quarters[j] = fold_to_quarters(sums[4][j], sums[kOther][j], sums[4][j], sums[kOther][j]);
    }
    store_rows<Rows - 4>(quarters, target, target.y + 4 * target.stride);
  }
}

/// Up to kTileRows rows by four outputs.
template <typename Weights>
MILLRACE_AVX512 void tile_of(std::size_t rows, const float* x, std::size_t x_stride,
                             const Weights& w, std::size_t inputs, const Target& target) {
  switch (rows) {
    case 1:
      return tile<1>(x, x_stride, w, inputs, target);
    case 2:
      return tile<2>(x, x_stride, w, inputs, target);
    case 3:
      return tile<3>(x, x_stride, w, inputs, target);
    case 4:
      return tile<4>(x, x_stride, w, inputs, target);
    case 5:
      return tile<5>(x, x_stride, w, inputs, target);
    default:
      return tile<kTileRows>(x, x_stride, w, inputs, target);
  }
}

MILLRACE_AVX512 void matmul(const MatmulShape& s) {
  const auto rows = static_cast<std::size_t>(s.rows);
  const auto outputs = static_cast<std::size_t>(s.outputs);
  // Six rows at a time over all outputs: the rows stay in the first-level cache.
  for (std::size_t m = 0; m < rows; m += kTileRows) {
    for (std::size_t n = 0; n < outputs; n += kTileOutputs) {
      const std::size_t width = std::min(kTileOutputs, outputs - n);
      const Target target{.y = s.y + m * s.y_stride + n,
                          .stride = s.y_stride,
                          .outputs = static_cast<__mmask8>((1u << width) - 1),
                          .rounding = s.rounding};
      tile_of(std::min(kTileRows, rows - m), s.x + m * s.x_stride, s.x_stride,
              Float32Weights(s.w + n * s.w_stride, s.w_stride, width),
              static_cast<std::size_t>(s.inputs), target);
    }
  }
}

template <typename Weights>
MILLRACE_AVX512 void packed_matmul_of(const PackedMatmulShape& s) {
  const auto rows = static_cast<std::size_t>(s.rows);
  const auto first = static_cast<std::size_t>(s.first_output);
  const std::size_t end = first + static_cast<std::size_t>(s.outputs);
  for (std::size_t n = first; n < end;) {
    // Up to the next multiple of four, so that a tile lies in one block of scales.
    const std::size_t width = std::min(kTileOutputs - n % kTileOutputs, end - n);
    const Weights weights(*s.weight, n, width);
    for (std::size_t m = 0; m < rows; m += kTileRows) {
      const Target target{.y = s.y + m * s.y_stride + (n - first),
                          .stride = s.y_stride,
                          .outputs = static_cast<__mmask8>((1u << width) - 1),
                          .rounding = s.rounding};
      tile_of(std::min(kTileRows, rows - m), s.x + m * s.x_stride, s.x_stride, weights,
              static_cast<std::size_t>(s.weight->inputs), target);
    }
    n += width;
  }
}

MILLRACE_AVX512 void packed_matmul(const PackedMatmulShape& s) {
  switch (s.weight->format) {
    case WeightFormat::kFloat32:
      return packed_matmul_of<Float32Weights>(s);
    case WeightFormat::kBf16:
      return packed_matmul_of<Bf16Weights>(s);
    case WeightFormat::kFp8:
      return packed_matmul_of<Fp8Weights>(s);
    case WeightFormat::kFp4:
      return packed_matmul_of<Fp4Weights>(s);
  }
}

template <typename Weights>
MILLRACE_AVX512 void decode_row(const WeightMatrix& weight, std::size_t row, float* out) {
  Weights w(weight, row, 1);
  const auto inputs = static_cast<std::size_t>(weight.inputs);
  std::size_t k = 0;
  for (; k + kLanes <= inputs; k += kLanes) {
    w.start_block(k);
    _mm512_storeu_ps(out + k, w.load(0, k));
  }
  if (k < inputs) {
    w.start_block(k);
    _mm512_mask_storeu_ps(out + k, first_lanes(inputs - k), w.load_some(0, k, inputs - k));
  }
}

MILLRACE_AVX512 void decode(const WeightMatrix& weight, int first, int count, float* out) {
  for (int i = 0; i < count; ++i, out += weight.inputs) {
    const auto row = static_cast<std::size_t>(first) + static_cast<std::size_t>(i);
    switch (weight.format) {
      case WeightFormat::kFloat32:
        decode_row<Float32Weights>(weight, row, out);
        break;
      case WeightFormat::kBf16:
        decode_row<Bf16Weights>(weight, row, out);
        break;
      case WeightFormat::kFp8:
        decode_row<Fp8Weights>(weight, row, out);
        break;
      case WeightFormat::kFp4:
        decode_row<Fp4Weights>(weight, row, out);
        break;
    }
  }
}

/// Sums of `Heads` heads for up to 64 channels from c on: every value is read once for all of them.
template <std::size_t Heads>
MILLRACE_AVX512 void weighted_sum_of(const WeightedSumShape& s, std::size_t first_head,
                                     std::size_t c) {
  constexpr std::size_t kVectors = 4;
  const auto width = static_cast<std::size_t>(s.width);
  const float* p = s.p + first_head * s.p_stride;
  float* out = s.out + first_head * width + c;
  __mmask16 mask[kVectors];
  __m512 sums[Heads][kVectors];
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kVectors; ++i) {
    const std::size_t from = std::min(width, c + i * kLanes);
    mask[i] = first_lanes(std::min(kLanes, width - from));
#pragma GCC unroll 4
    for (std::size_t h = 0; h < Heads; ++h) {
      sums[h][i] = _mm512_maskz_loadu_ps(mask[i], out + h * width + i * kLanes);
    }
  }
  for (std::size_t t = 0; t < static_cast<std::size_t>(s.count); ++t) {
    const float* v = s.v + t * s.v_stride + c;
    __m512 values[kVectors];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kVectors; ++i) {
      values[i] = _mm512_maskz_loadu_ps(mask[i], v + i * kLanes);
    }
#pragma GCC unroll 4
    for (std::size_t h = 0; h < Heads; ++h) {
      const __m512 weight = _mm512_set1_ps(p[h * s.p_stride + t]);
#pragma GCC unroll 4
      for (std::size_t i = 0; i < kVectors; ++i) {
        sums[h][i] = _mm512_fmadd_ps(weight, values[i], sums[h][i]);
      }
    }
  }
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kVectors; ++i) {
#pragma GCC unroll 4
    for (std::size_t h = 0; h < Heads; ++h) {
      _mm512_mask_storeu_ps(out + h * width + i * kLanes, mask[i], sums[h][i]);
    }
  }
}

MILLRACE_AVX512 void weighted_sum(const WeightedSumShape& s) {
  constexpr std::size_t kHeads = 4;
  const auto heads = static_cast<std::size_t>(s.heads);
  for (std::size_t c = 0; c < static_cast<std::size_t>(s.width); c += 4 * kLanes) {
    std::size_t h = 0;
    for (; h + kHeads <= heads; h += kHeads) weighted_sum_of<kHeads>(s, h, c);
    for (; h < heads; ++h) weighted_sum_of<1>(s, h, c);
  }
}

constexpr Kernels kAvx512{"avx512", matmul,       packed_matmul,
                          decode,   weighted_sum, avx512_row_kernels};

}  // namespace

const Kernels* avx512_kernels() {
  const bool all = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return all ? &kAvx512 : nullptr;
}

}  // namespace millrace::dataplane::engine::cpu

#else

namespace millrace::dataplane::engine::cpu {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace millrace::dataplane::engine::cpu

#endif
