#include "dataplane/engine/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "dataplane/engine/cpu/indexing.h"

namespace millrace::dataplane::engine::cpu {
namespace {

float load_bf16(const std::uint8_t* bytes) {
  std::uint16_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return model::decode_bf16(bits);
}

}  // namespace

float CpuOps::dot(const float* x, const float* y, int count) const {
  float sum = 0;
  kernels_.matmul({.x = x,
                   .x_stride = 0,
                   .rows = 1,
                   .w = y,
                   .w_stride = 0,
                   .outputs = 1,
                   .inputs = count,
                   .rounding = Rounding::kNone,
                   .y = &sum,
                   .y_stride = 0});
  return sum;
}

void CpuOps::embed(Stream&, const EmbedArgs& a) {
  for (int row = 0; row < a.rows; ++row) {
    const std::uint8_t* source = a.table + at(a.tokens[row], 2 * std::int64_t{a.width});
    float* first = a.stream + at(row, std::int64_t{a.copies} * a.width);
    for (int c = 0; c < a.width; ++c) first[c] = load_bf16(source + at(c, 2));
    for (int k = 1; k < a.copies; ++k) std::copy_n(first, a.width, first + at(k, a.width));
    float* mix = a.mix + at(row, a.copies);
    std::fill_n(mix, a.copies, 0.0f);
    mix[0] = 1.0f;
  }
}

void CpuOps::rms_norm(Stream&, const RmsNormArgs& a) {
  for (int row = 0; row < a.rows; ++row) {
    const float* x = a.x + at(row, a.width);
    float* out = a.out + at(row, a.width);
    const float mean = dot(x, x, a.width) / static_cast<float>(a.width);
    const float factor = 1.0f / std::sqrt(mean + a.eps);
    for (int c = 0; c < a.width; ++c) out[c] = a.weight[c] * (x[c] * factor);
    store_all(out, at(1, a.width), a.rounding);
  }
}

void CpuOps::matmul(Stream&, const MatmulArgs& a) {
  products_.run({.x = a.x,
                 .x_stride = at(1, a.x_stride),
                 .rows = a.rows,
                 .weight = &a.weight,
                 .first_output = a.first_output,
                 .outputs = a.outputs,
                 .rounding = a.rounding,
                 .y = a.out,
                 .y_stride = at(1, a.out_stride)});
}

void CpuOps::quantize(Stream&, const QuantizeArgs& a) {
  for (int row = 0; row < a.rows; ++row) {
    const std::span<float> out(a.out + at(row, a.width), at(1, a.width));
    if (a.out != a.x) std::copy_n(a.x + at(row, a.width), a.width, out.data());
    if (a.format == QuantFormat::kQ8) {
      model::round_q8(out);
    } else {
      model::round_q4i(out);
    }
  }
}

void CpuOps::rope_table(Stream&, const RopeTableArgs& a) {
  for (int row = 0; row < a.rows; ++row) {
    const auto position = static_cast<float>(a.position[row] * a.position_scale);
    for (int i = 0; i < a.pairs; ++i) {
      const auto angle = static_cast<double>(position * a.frequency[i]);
      a.cosine[at(row, a.pairs) + static_cast<std::size_t>(i)] =
          static_cast<float>(std::cos(angle));
      a.sine[at(row, a.pairs) + static_cast<std::size_t>(i)] = static_cast<float>(std::sin(angle));
    }
  }
}

void CpuOps::rope(Stream&, const RopeArgs& a) {
  const float sign = a.direction == RopeDirection::kForward ? 1.0f : -1.0f;
  for (int row = 0; row < a.rows; ++row) {
    const float* cosine = a.cosine + at(row, a.pairs);
    const float* sine = a.sine + at(row, a.pairs);
    for (int head = 0; head < a.heads; ++head) {
      const std::ptrdiff_t pairs = a.pairs;
      float* x = a.x + at(std::int64_t{row} * a.heads + head + 1, a.width) - 2 * pairs;
      for (std::ptrdiff_t i = 0; i < pairs; ++i) {
        const float even = x[2 * i];
        const float odd = x[2 * i + 1];
        const float turn = sign * sine[i];
        x[2 * i] = stored(even * cosine[i] - odd * turn, a.rounding);
        x[2 * i + 1] = stored(even * turn + odd * cosine[i], a.rounding);
      }
    }
  }
}

void CpuOps::add(Stream&, const AddArgs& a) {
  for (std::size_t i = 0; i < a.count; ++i) a.out[i] += a.x[i];
  store_all(a.out, a.count, a.rounding);
}

void CpuOps::gather_rows(Stream&, const GatherRowsArgs& a) {
  for (int row = 0; row < a.rows; ++row) {
    const float* source = a.x + at(a.index[row], a.width);
    float* target = a.out + at(row, a.width);
    if (source != target) std::memcpy(target, source, at(1, a.width) * sizeof(float));
  }
}

}  // namespace millrace::dataplane::engine::cpu
