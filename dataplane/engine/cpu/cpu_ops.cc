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
  for_rows(a.rows, 2.0 * a.width, [&](int row, int) {
    row_.rms_norm({.x = a.x + at(row, a.width),
                   .weight = a.weight,
                   .width = a.width,
                   .eps = a.eps,
                   .rounding = a.rounding,
                   .out = a.out + at(row, a.width)});
  });
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
  for_rows(a.rows, 4.0 * a.width, [&](int row, int) {
    float* out = a.out + at(row, a.width);
    if (a.out != a.x) std::copy_n(a.x + at(row, a.width), a.width, out);
    if (a.format == QuantFormat::kQ8) {
      row_.round_q8(out, a.width);
    } else {
      model::round_q4i({out, at(1, a.width)});
    }
  });
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
  for_rows(a.rows, 4.0 * a.heads * a.pairs, [&](int row, int) {
    for (int head = 0; head < a.heads; ++head) {
      const std::ptrdiff_t turned = 2 * std::ptrdiff_t{a.pairs};
      row_.rope({.cosine = a.cosine + at(row, a.pairs),
                 .sine = a.sine + at(row, a.pairs),
                 .sign = sign,
                 .pairs = a.pairs,
                 .rounding = a.rounding,
                 .x = a.x + at(std::int64_t{row} * a.heads + head + 1, a.width) - turned});
    }
  });
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
