#include "dataplane/engine/cpu/avx512.h"
#include "dataplane/engine/cpu/row_kernels.h"

#if defined(__x86_64__)

#include "dataplane/engine/cpu/avx512_weights.h"
#include "dataplane/engine/cpu/row_loops.h"
#include "dataplane/model/number_formats.h"

namespace millrace::dataplane::engine::cpu {
namespace {

/// The lanes of a vector, added at distances 8, 4, 2, 1.
MILLRACE_AVX512_INLINE float fold(__m512 x) {
  x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0x4E));
  x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0xB1));
  x = _mm512_add_ps(x, _mm512_shuffle_ps(x, x, 0x4E));
  x = _mm512_add_ps(x, _mm512_shuffle_ps(x, x, 0xB1));
  return _mm512_cvtss_f32(x);
}

MILLRACE_AVX512 float dot(const float* x, const float* y, int count) {
  const auto end = static_cast<std::size_t>(count);
  __m512 sum = _mm512_setzero_ps();
  std::size_t k = 0;
  for (; k + kLanes <= end; k += kLanes) {
    sum = _mm512_fmadd_ps(_mm512_loadu_ps(x + k), _mm512_loadu_ps(y + k), sum);
  }
  if (k < end) {
    const __mmask16 mask = first_lanes(end - k);
    sum = _mm512_mask3_fmadd_ps(_mm512_maskz_loadu_ps(mask, x + k),
                                _mm512_maskz_loadu_ps(mask, y + k), sum, mask);
  }
  return fold(sum);
}

MILLRACE_AVX512 void rms_norm(const RmsNormRow& r) {
  row_loops::scale_row(r, dot(r.x, r.x, r.width) / static_cast<float>(r.width));
}

MILLRACE_AVX512 void collapse(const CollapseRow& r) { row_loops::collapse(r); }
MILLRACE_AVX512 void expand(const ExpandRow& r) { row_loops::expand(r); }
MILLRACE_AVX512 void rope(const RopeRow& r) { row_loops::rope(r); }
MILLRACE_AVX512 void swiglu(const SwigluRow& r) { row_loops::swiglu(r); }
MILLRACE_AVX512 float softmax(float* scores, int count, float scale, float sink) {
  return row_loops::softmax(scores, count, scale, sink);
}

/// The nearest value of E4M3, ties to even, for magnitudes that 448 bounds.
MILLRACE_AVX512_INLINE __m512 nearest_e4m3(__m512 x) {
  const __m512i sign_bit = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  const __m512 magnitude = _mm512_min_ps(_mm512_abs_ps(x), _mm512_set1_ps(448.0f));
  // The last place of 2^14 is 2^-9, the step of the subnormals.
  const __m512 fixed = _mm512_set1_ps(16384.0f);
  const __m512 small = _mm512_sub_ps(_mm512_add_ps(magnitude, fixed), fixed);
  // Normal codes keep three bits of the mantissa.
  const __m512i bits = _mm512_castps_si512(magnitude);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFFF)), odd);
  const __m512 normal =
      _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32(static_cast<int>(0xFFF00000u))));
  const __mmask16 is_small = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(0x1p-6f), _CMP_LT_OQ);
  const __m512 rounded = _mm512_mask_blend_ps(is_small, normal, small);
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(rounded),
                                             _mm512_and_si512(_mm512_castps_si512(x), sign_bit)));
}

MILLRACE_AVX512 void round_q8(float* x, int width) {
  for (float* block = x; block < x + width; block += model::kQ8Block) {
    const __m512 low = _mm512_loadu_ps(block);
    const __m512 high = _mm512_loadu_ps(block + kLanes);
    const float largest =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
    const int exponent = model::p2ceil_exponent(std::max(largest, 1e-4f) * (1.0f / 448.0f));
    const auto power = [](int e) {
      return std::bit_cast<float>(static_cast<std::uint32_t>(e + 127) << 23);
    };
    const __m512 scale = _mm512_set1_ps(power(exponent));
    const __m512 inverse = _mm512_set1_ps(power(-exponent));
    _mm512_storeu_ps(block, _mm512_mul_ps(nearest_e4m3(_mm512_mul_ps(low, inverse)), scale));
    _mm512_storeu_ps(block + kLanes,
                     _mm512_mul_ps(nearest_e4m3(_mm512_mul_ps(high, inverse)), scale));
  }
}

/// 16 codes times what their table holds.
MILLRACE_AVX512_INLINE __m512 look_up_nibbles(const std::uint8_t* codes, __m512 table) {
  return _mm512_permutexvar_ps(spread_nibbles(codes), table);
}

MILLRACE_AVX512 void unpack_q4(const Q4Row& r) {
  const __m512 values = e2m1_values();
  const auto width = static_cast<std::size_t>(r.width);
  const std::size_t block = r.kind == Q4Kind::kQ4g ? model::kQ4gBlock : model::kQ4iBlock;
  for (std::size_t first = 0; first < width; first += block) {
    const std::uint8_t scale = r.scales[first / block];
    const __m512 table =
        _mm512_mul_ps(values, _mm512_set1_ps(r.kind == Q4Kind::kQ4g ? model::decode_e4m3(scale)
                                                                    : model::decode_e8m0(scale)));
    _mm512_storeu_ps(r.out + first, look_up_nibbles(r.codes + first / 2, table));
    if (r.kind == Q4Kind::kQ4g) continue;
    _mm512_storeu_ps(r.out + first + kLanes,
                     look_up_nibbles(r.codes + first / 2 + kLanes / 2, table));
  }
}

constexpr RowKernels kAvx512{.dot = dot,
                             .rms_norm = rms_norm,
                             .collapse = collapse,
                             .expand = expand,
                             .rope = rope,
                             .swiglu = swiglu,
                             .softmax = softmax,
                             .round_q8 = round_q8,
                             .unpack_q4 = unpack_q4};

}  // namespace

const RowKernels& avx512_row_kernels() { return kAvx512; }

}  // namespace millrace::dataplane::engine::cpu

#endif
