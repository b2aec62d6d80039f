#include <algorithm>
#include <cmath>
#include <cstring>

#include "dataplane/engine/cpu/indexing.h"
#include "dataplane/engine/cpu/kernels.h"
#include "dataplane/engine/cpu/lane_sum.h"
#include "dataplane/model/number_formats.h"

namespace millrace::dataplane::engine::cpu {
namespace {

void matmul(const MatmulShape& s) {
  for (std::size_t m = 0; m < static_cast<std::size_t>(s.rows); ++m) {
    for (std::size_t n = 0; n < static_cast<std::size_t>(s.outputs); ++n) {
      LaneSum sum;
      for (std::size_t k = 0; k < static_cast<std::size_t>(s.inputs); ++k) {
        sum.add(k, s.x[m * s.x_stride + k], s.w[n * s.w_stride + k]);
      }
      s.y[m * s.y_stride + n] = stored(sum.total(), s.rounding);
    }
  }
}

/// Decodes inputs [first, first + count) of one row; `first` and `count` are multiples of the
/// weight block, except that the last block may be shorter.
void decode_part(const WeightMatrix& w, int row, int first, int count, float* out) {
  const auto inputs = std::int64_t{w.inputs};
  const auto values = static_cast<std::size_t>(count);
  switch (w.format) {
    case WeightFormat::kFloat32:
      std::memcpy(out, w.codes + at(row, 4 * inputs) + at(first, 4), values * sizeof(float));
      return;
    case WeightFormat::kBf16:
      for (std::size_t i = 0; i < values; ++i) {
        std::uint16_t bits;
        std::memcpy(&bits, w.codes + at(row, 2 * inputs) + at(first, 2) + 2 * i, sizeof bits);
        out[i] = model::decode_bf16(bits);
      }
      return;
    case WeightFormat::kFp8: {
      const std::uint8_t* codes = w.codes + at(row, inputs) + at(first, 1);
      const std::int64_t tiles = (inputs + model::kWeightBlock - 1) / model::kWeightBlock;
      const std::uint8_t* scales = w.scales + at(row / model::kWeightBlock, tiles);
      for (std::size_t i = 0; i < values; ++i) {
        const std::size_t block = (at(first, 1) + i) / model::kWeightBlock;
        out[i] = model::decode_e4m3(codes[i]) * model::decode_e8m0(scales[block]);
      }
      return;
    }
    case WeightFormat::kFp4:
      model::unpack_q4i(
          w.codes + at(row, inputs / 2) + at(first, 1) / 2,
          w.scales + at(row, inputs / model::kWeightBlock) + at(first, 1) / model::kWeightBlock,
          {out, values});
      return;
  }
}

void decode(const WeightMatrix& weight, int first, int count, float* out) {
  for (int i = 0; i < count; ++i) {
    decode_part(weight, first + i, 0, weight.inputs, out + at(i, weight.inputs));
  }
}

void packed_matmul(const PackedMatmulShape& s) {
  constexpr int kPart = model::kWeightBlock;
  float part[kPart];
  const int inputs = s.weight->inputs;
  for (int n = 0; n < s.outputs; ++n) {
    for (int m = 0; m < s.rows; ++m) {
      const float* x = s.x + static_cast<std::size_t>(m) * s.x_stride;
      LaneSum sum;
      for (int first = 0; first < inputs; first += kPart) {
        const int count = std::min(kPart, inputs - first);
        decode_part(*s.weight, s.first_output + n, first, count, part);
        for (std::size_t i = 0; i < at(count, 1); ++i) sum.add(i, x[at(first, 1) + i], part[i]);
      }
      s.y[static_cast<std::size_t>(m) * s.y_stride + at(n, 1)] = stored(sum.total(), s.rounding);
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

constexpr Kernels kPortable{"portable", matmul,       packed_matmul,
                            decode,     weighted_sum, portable_row_kernels};

}  // namespace

const Kernels& portable_kernels() { return kPortable; }

const Kernels& best_kernels() {
  const Kernels* fast = avx512_kernels();
  return fast != nullptr ? *fast : kPortable;
}

}  // namespace millrace::dataplane::engine::cpu
