#pragma once

// Up to four rows of a weight matrix as a source of vectors of 16 decoded values, one class for
// every format. All have
//
//   X(matrix, first row, rows)    rows 1 … 4; rows beyond repeat the last one
//   start_block(k)                once for every 32 inputs (k a multiple of 32) before their loads
//   load(j, k)                    inputs k … k + 15 of row j
//   load_some(j, k, count)        the first `count` < 16 of them, the other lanes zero
//
// Codes are decoded to 2^-8 of their value, which is exact, and the scale makes up for it: that way
// an E4M3 code is a float16 with its bits shifted, subnormals included. Included by AVX-512 sources
// only.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dataplane/engine/cpu/avx512.h"
#include "dataplane/engine/ops.h"
#include "dataplane/model/number_formats.h"

#if defined(__x86_64__)

namespace millrace::dataplane::engine::cpu {

constexpr std::size_t kLanes = 16;

MILLRACE_AVX512_INLINE __mmask16 first_lanes(std::size_t count) {
  return static_cast<__mmask16>((1u << count) - 1);
}

/// 2^8 · 2^(byte − 127), for bytes below 247.
MILLRACE_AVX512_INLINE __m512 lifted_scale(std::uint8_t byte) {
  return _mm512_castsi512_ps(_mm512_set1_epi32((byte + 8) << 23));
}

/// The values of the E2M1 codes.
MILLRACE_AVX512_INLINE __m512 e2m1_values() {
  return _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f,
                        -2.0f, -3.0f, -4.0f, -6.0f);
}

/// Nibble i of 16, low one first, in the lowest bits of lane i. What the bits above hold does not
/// matter to a table look-up, which reads four.
MILLRACE_AVX512_INLINE __m512i spread_nibbles(const std::uint8_t* codes) {
  // Two broadcasts out of memory: shuffles are what the look-up needs already.
  std::int32_t low, high;
  std::memcpy(&low, codes, sizeof low);
  std::memcpy(&high, codes + sizeof low, sizeof high);
  const __m512i words = _mm512_mask_blend_epi32(static_cast<__mmask16>(0xFF00),
                                                _mm512_set1_epi32(low), _mm512_set1_epi32(high));
  const __m512i shift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  return _mm512_srlv_epi32(words, shift);
}

/// The first `count` bytes of a group of at most 64, the others zero.
template <std::size_t Size>
struct SomeBytes {
  SomeBytes(const std::uint8_t* bytes, std::size_t count) { std::memcpy(data, bytes, count); }
  std::uint8_t data[Size] = {};
};

/// Starts of four rows.
struct RowStarts {
  RowStarts(const std::uint8_t* first, std::size_t row_bytes, std::size_t rows) {
    for (std::size_t j = 0; j < 4; ++j) row[j] = first + std::min(j, rows - 1) * row_bytes;
    ahead = rows * row_bytes;
  }
  /// Asks for the bytes at this offset of the rows after these: the next tile reads them. Hardware
  /// that follows addresses stops at every page and starts late in every row.
  MILLRACE_AVX512_INLINE void prefetch(std::size_t offset) const {
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j) {
      _mm_prefetch(reinterpret_cast<const char*>(row[j] + offset + ahead), _MM_HINT_T0);
    }
  }
  const std::uint8_t* row[4];
  std::size_t ahead;
};

class Float32Weights {
 public:
  Float32Weights(const float* first, std::size_t stride, std::size_t rows)
      : rows_(reinterpret_cast<const std::uint8_t*>(first), stride * sizeof(float), rows) {}
  Float32Weights(const WeightMatrix& w, std::size_t first, std::size_t rows)
      : rows_(w.codes + first * bytes(w), bytes(w), rows) {}

  MILLRACE_AVX512_INLINE void start_block(std::size_t) {}
  MILLRACE_AVX512_INLINE __m512 load(std::size_t j, std::size_t k) const {
    return _mm512_loadu_ps(rows_.row[j] + k * sizeof(float));
  }
  MILLRACE_AVX512_INLINE __m512 load_some(std::size_t j, std::size_t k, std::size_t count) const {
    return _mm512_maskz_loadu_ps(first_lanes(count), rows_.row[j] + k * sizeof(float));
  }

 private:
  static std::size_t bytes(const WeightMatrix& w) {
    return static_cast<std::size_t>(w.inputs) * sizeof(float);
  }
  RowStarts rows_;
};

class Bf16Weights {
 public:
  Bf16Weights(const WeightMatrix& w, std::size_t first, std::size_t rows)
      : rows_(w.codes + first * bytes(w), bytes(w), rows) {}

  MILLRACE_AVX512_INLINE void start_block(std::size_t k) { rows_.prefetch(2 * k); }
  MILLRACE_AVX512_INLINE __m512 load(std::size_t j, std::size_t k) const {
    return decode(rows_.row[j] + 2 * k);
  }
  MILLRACE_AVX512_INLINE __m512 load_some(std::size_t j, std::size_t k, std::size_t count) const {
    const SomeBytes<2 * kLanes> some(rows_.row[j] + 2 * k, 2 * count);
    return decode(some.data);
  }

 private:
  static std::size_t bytes(const WeightMatrix& w) { return static_cast<std::size_t>(w.inputs) * 2; }
  MILLRACE_AVX512_INLINE static __m512 decode(const std::uint8_t* bytes) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  RowStarts rows_;
};

class Fp8Weights {
 public:
  /// The rows lie in one block of 32 outputs.
  Fp8Weights(const WeightMatrix& w, std::size_t first, std::size_t rows)
      : rows_(w.codes + first * inputs(w), inputs(w), rows),
        scales_(w.scales + first / model::kWeightBlock *
                               ((inputs(w) + model::kWeightBlock - 1) / model::kWeightBlock)) {}

  MILLRACE_AVX512_INLINE void start_block(std::size_t k) {
    rows_.prefetch(k);
    scale_ = lifted_scale(scales_[k / model::kWeightBlock]);
  }
  MILLRACE_AVX512_INLINE __m512 load(std::size_t j, std::size_t k) const {
    return decode(rows_.row[j] + k);
  }
  MILLRACE_AVX512_INLINE __m512 load_some(std::size_t j, std::size_t k, std::size_t count) const {
    const SomeBytes<kLanes> some(rows_.row[j] + k, count);
    return decode(some.data);
  }

 private:
  static std::size_t inputs(const WeightMatrix& w) { return static_cast<std::size_t>(w.inputs); }
  MILLRACE_AVX512_INLINE __m512 decode(const std::uint8_t* codes) const {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    // s eeee mmm, sign-extended and shifted, is s s eeee mmm 0000000; float16 wants s 0 eeee mmm
    // 0000000.
    const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7),
                                            _mm256_set1_epi16(static_cast<short>(0xBFFF)));
    return _mm512_mul_ps(_mm512_cvtph_ps(halves), scale_);
  }
  RowStarts rows_;
  const std::uint8_t* scales_;
  __m512 scale_;
};

class Fp4Weights {
 public:
  Fp4Weights(const WeightMatrix& w, std::size_t first, std::size_t rows)
      : rows_(w.codes + first * bytes(w), bytes(w), rows),
        scales_(w.scales + first * blocks(w), blocks(w), rows) {}

  MILLRACE_AVX512_INLINE void start_block(std::size_t k) {
    rows_.prefetch(k / 2);
    const __m512 values = _mm512_mul_ps(e2m1_values(), _mm512_set1_ps(0x1p-8f));
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j) {
      table_[j] = _mm512_mul_ps(values, lifted_scale(scales_.row[j][k / model::kWeightBlock]));
    }
  }
  MILLRACE_AVX512_INLINE __m512 load(std::size_t j, std::size_t k) const {
    return decode(j, rows_.row[j] + k / 2);
  }
  /// Rows are whole blocks of 32: there is never a part of a vector.
  MILLRACE_AVX512_INLINE __m512 load_some(std::size_t j, std::size_t k, std::size_t count) const {
    const SomeBytes<kLanes> some(rows_.row[j] + k / 2, (count + 1) / 2);
    return decode(j, some.data);
  }

 private:
  static std::size_t bytes(const WeightMatrix& w) { return static_cast<std::size_t>(w.inputs) / 2; }
  static std::size_t blocks(const WeightMatrix& w) {
    return static_cast<std::size_t>(w.inputs) / model::kWeightBlock;
  }
  MILLRACE_AVX512_INLINE __m512 decode(std::size_t j, const std::uint8_t* codes) const {
    return _mm512_permutexvar_ps(spread_nibbles(codes), table_[j]);
  }
  RowStarts rows_;
  RowStarts scales_;
  __m512 table_[4];
};

}  // namespace millrace::dataplane::engine::cpu

#endif
