#include "dataplane/engine/cpu/kernels.h"

#if defined(__x86_64__)

// GCC 12 takes the deliberately undefined operand inside its own intrinsics for a bug of ours (GCC
// bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

// The instruction set is asked for at run time, so only these functions are compiled for it.
#define MILLRACE_AVX512 __attribute__((target("avx512f")))
#define MILLRACE_AVX512_INLINE __attribute__((target("avx512f"), always_inline)) inline

namespace millrace::dataplane::engine::cpu {
namespace {

constexpr std::size_t kLanes = 16;

MILLRACE_AVX512_INLINE __mmask16 mask_of(std::size_t count) {
  return static_cast<__mmask16>((1u << count) - 1);
}

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

/// A tile of 4 rows by 4 outputs.
MILLRACE_AVX512 void tile_4x4(const MatmulShape& s, std::size_t m, std::size_t n) {
  const float* x = s.x + m * s.x_stride;
  const float* w = s.w + n * s.w_stride;
  __m512 acc[4][4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) acc[i][j] = _mm512_setzero_ps();
  }
  const auto inputs = static_cast<std::size_t>(s.inputs);
  std::size_t k = 0;
  for (; k + kLanes <= inputs; k += kLanes) {
    __m512 xv[4];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) xv[i] = _mm512_loadu_ps(x + i * s.x_stride + k);
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j) {
      const __m512 wv = _mm512_loadu_ps(w + j * s.w_stride + k);
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) acc[i][j] = _mm512_fmadd_ps(xv[i], wv, acc[i][j]);
    }
  }
  if (k < inputs) {
    const __mmask16 tail = mask_of(inputs - k);
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j) {
      const __m512 wv = _mm512_maskz_loadu_ps(tail, w + j * s.w_stride + k);
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) {
        const __m512 xv = _mm512_maskz_loadu_ps(tail, x + i * s.x_stride + k);
        acc[i][j] = _mm512_mask3_fmadd_ps(xv, wv, acc[i][j], tail);
      }
    }
  }
  __m512 quarters[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    quarters[j] = fold_to_quarters(acc[0][j], acc[1][j], acc[2][j], acc[3][j]);
  }
  const __m512 y = fold_quarters(quarters[0], quarters[1], quarters[2], quarters[3]);
  float* out = s.y + m * s.y_stride + n;
  _mm_storeu_ps(out, _mm512_extractf32x4_ps(y, 0));
  _mm_storeu_ps(out + s.y_stride, _mm512_extractf32x4_ps(y, 1));
  _mm_storeu_ps(out + 2 * s.y_stride, _mm512_extractf32x4_ps(y, 2));
  _mm_storeu_ps(out + 3 * s.y_stride, _mm512_extractf32x4_ps(y, 3));
}

/// A tile of 1 row by `Width` (at most 4) outputs: the edges, and decode steps of few rows.
template <int Width>
MILLRACE_AVX512 void tile_1xn(const MatmulShape& s, std::size_t m, std::size_t n) {
  const float* x = s.x + m * s.x_stride;
  const float* w = s.w + n * s.w_stride;
  __m512 acc[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) acc[j] = _mm512_setzero_ps();
  const auto inputs = static_cast<std::size_t>(s.inputs);
  for (std::size_t k = 0; k < inputs; k += kLanes) {
    const __mmask16 mask =
        inputs - k >= kLanes ? static_cast<__mmask16>(0xFFFF) : mask_of(inputs - k);
    const __m512 xv = _mm512_maskz_loadu_ps(mask, x + k);
#pragma GCC unroll 4
    for (std::size_t j = 0; j < Width; ++j) {
      const __m512 wv = _mm512_maskz_loadu_ps(mask, w + j * s.w_stride + k);
      acc[j] = _mm512_mask3_fmadd_ps(xv, wv, acc[j], mask);
    }
  }
  const __m512 quarters = fold_to_quarters(acc[0], acc[1], acc[2], acc[3]);
  const __m512 y = fold_quarters(quarters, quarters, quarters, quarters);
  float* out = s.y + m * s.y_stride + n;
  out[0] = _mm512_cvtss_f32(y);
  if constexpr (Width > 1) out[1] = _mm_cvtss_f32(_mm512_extractf32x4_ps(y, 1));
  if constexpr (Width > 2) out[2] = _mm_cvtss_f32(_mm512_extractf32x4_ps(y, 2));
  if constexpr (Width > 3) out[3] = _mm_cvtss_f32(_mm512_extractf32x4_ps(y, 3));
}

MILLRACE_AVX512 void row_edge(const MatmulShape& s, std::size_t m, std::size_t n,
                              std::size_t count) {
  switch (count) {
    case 1:
      return tile_1xn<1>(s, m, n);
    case 2:
      return tile_1xn<2>(s, m, n);
    case 3:
      return tile_1xn<3>(s, m, n);
    default:
      return tile_1xn<4>(s, m, n);
  }
}

MILLRACE_AVX512 void matmul(const MatmulShape& s) {
  const auto rows = static_cast<std::size_t>(s.rows);
  const auto outputs = static_cast<std::size_t>(s.outputs);
  // Four outputs at a time over all rows: their weights stay in the first-level cache.
  for (std::size_t n = 0; n < outputs; n += 4) {
    const std::size_t width = outputs - n < 4 ? outputs - n : 4;
    std::size_t m = 0;
    if (width == 4) {
      for (; m + 4 <= rows; m += 4) tile_4x4(s, m, n);
    }
    for (; m < rows; ++m) row_edge(s, m, n, width);
  }
}

MILLRACE_AVX512 void weighted_sum(const WeightedSumShape& s) {
  const auto width = static_cast<std::size_t>(s.width);
  const auto count = static_cast<std::size_t>(s.count);
  for (std::size_t c = 0; c < width; c += 4 * kLanes) {
    for (std::size_t h = 0; h < static_cast<std::size_t>(s.heads); ++h) {
      const float* p = s.p + h * s.p_stride;
      float* out = s.out + h * width + c;
      __mmask16 mask[4];
      __m512 acc[4];
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) {
        const std::size_t at = c + i * kLanes;
        mask[i] = at >= width ? static_cast<__mmask16>(0)
                              : mask_of(width - at < kLanes ? width - at : kLanes);
        acc[i] = _mm512_maskz_loadu_ps(mask[i], out + i * kLanes);
      }
      for (std::size_t t = 0; t < count; ++t) {
        const __m512 weight = _mm512_set1_ps(p[t]);
        const float* v = s.v + t * s.v_stride + c;
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; ++i) {
          acc[i] = _mm512_fmadd_ps(weight, _mm512_maskz_loadu_ps(mask[i], v + i * kLanes), acc[i]);
        }
      }
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) {
        _mm512_mask_storeu_ps(out + i * kLanes, mask[i], acc[i]);
      }
    }
  }
}

constexpr Kernels kAvx512{"avx512", matmul, weighted_sum};

}  // namespace

const Kernels* avx512_kernels() { return __builtin_cpu_supports("avx512f") ? &kAvx512 : nullptr; }

}  // namespace millrace::dataplane::engine::cpu

#else

namespace millrace::dataplane::engine::cpu {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace millrace::dataplane::engine::cpu

#endif
