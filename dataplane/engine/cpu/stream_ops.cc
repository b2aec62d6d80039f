// Hyper-connections (model specification, section 2.2) and Engram (section 2.6).
#include <algorithm>
#include <cmath>
#include <span>

#include "dataplane/engine/cpu/cpu_ops.h"
#include "dataplane/engine/cpu/indexing.h"

namespace millrace::dataplane::engine::cpu {
namespace {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

/// Softmax over destinations for every source, plus eps; then alternating column and row steps, the
/// column step last. c [copies, copies], source outer, in and out. A number of copies that the
/// compiler knows keeps the matrix in registers.
template <int kCopies>
void sinkhorn(float* matrix, int any_copies, int rounds, float eps) {
  const int copies = kCopies > 0 ? kCopies : any_copies;
  float local[kCopies > 0 ? kCopies * kCopies : 1];
  if constexpr (kCopies > 0) std::copy_n(matrix, kCopies * kCopies, local);
  float* const c = kCopies > 0 ? local : matrix;
  for (int j = 0; j < copies; ++j) {
    float* row = c + at(j, copies);
    const float largest = *std::max_element(row, row + copies);
    float sum = 0;
    for (int k = 0; k < copies; ++k) sum += row[k] = std::exp(row[k] - largest);
    for (int k = 0; k < copies; ++k) row[k] = row[k] / sum + eps;
  }
  const auto column_step = [&] {
    for (int k = 0; k < copies; ++k) {
      float sum = 0;
      for (int j = 0; j < copies; ++j) sum += c[j * copies + k];
      sum += eps;
      for (int j = 0; j < copies; ++j) c[j * copies + k] /= sum;
    }
  };
  column_step();
  for (int round = 1; round < rounds; ++round) {
    for (int j = 0; j < copies; ++j) {
      float* row = c + at(j, copies);
      float sum = 0;
      for (int k = 0; k < copies; ++k) sum += row[k];
      sum += eps;
      for (int k = 0; k < copies; ++k) row[k] /= sum;
    }
    column_step();
  }
  if constexpr (kCopies > 0) std::copy_n(local, kCopies * kCopies, matrix);
}

}  // namespace

void CpuOps::mix(Stream& stream, const MixArgs& a) {
  const int n = a.copies;
  const int outputs = (2 + n) * n;
  const int inputs = n * a.width;
  auto* z = reinterpret_cast<float*>(stream.workspace(at(a.rows, outputs) * sizeof(float)));
  products_.run({.x = a.stream,
                 .x_stride = at(1, inputs),
                 .rows = a.rows,
                 .weight = &a.fn,
                 .first_output = 0,
                 .outputs = outputs,
                 .rounding = Rounding::kNone,
                 .y = z,
                 .y_stride = at(1, outputs)});
  for_rows(a.rows, 2.0 * inputs + 2000.0, [&](int row, int) {
    const float* x = a.stream + at(row, inputs);
    const float factor =
        1.0f / std::sqrt(row_.dot(x, x, inputs) / static_cast<float>(inputs) + a.norm_eps);
    float* zr = z + at(row, outputs);
    for (int i = 0; i < outputs; ++i) {
      const int group = std::min(i / n, 2);  // a, p, then all of c
      zr[i] = zr[i] * factor * a.scale[group] + a.base[i];
    }
    float* c = a.c + at(row, std::int64_t{n} * n);
    for (int k = 0; k < n; ++k)
      a.a[at(row, n) + static_cast<std::size_t>(k)] = sigmoid(zr[k]) + a.hc_eps;
    for (int k = 0; k < n; ++k)
      a.p[at(row, n) + static_cast<std::size_t>(k)] = 2.0f * sigmoid(zr[n + k]);
    std::copy_n(zr + at(n, 2), at(n, n), c);
    if (n == 4) {
      sinkhorn<4>(c, n, a.sinkhorn_rounds, a.hc_eps);
    } else {
      sinkhorn<0>(c, n, a.sinkhorn_rounds, a.hc_eps);
    }
  });
}

void CpuOps::collapse(Stream&, const CollapseArgs& a) {
  for_rows(a.rows, 2.0 * a.copies * a.width, [&](int row, int) {
    row_.collapse({.a = a.a + at(row, a.copies),
                   .stream = a.stream + at(row, std::int64_t{a.copies} * a.width),
                   .copies = a.copies,
                   .width = a.width,
                   .rounding = a.rounding,
                   .out = a.out + at(row, a.width)});
  });
}

void CpuOps::expand(Stream&, const ExpandArgs& a) {
  reserve_scratch(at(a.copies, kExpandStrip) * sizeof(float));
  for_rows(a.rows, 2.0 * a.copies * a.copies * a.width, [&](int row, int thread) {
    row_.expand({.p = a.p + at(row, a.copies),
                 .c = a.c + at(row, std::int64_t{a.copies} * a.copies),
                 .y = a.y + at(row, a.width),
                 .copies = a.copies,
                 .width = a.width,
                 .rounding = a.rounding,
                 .before = scratch(thread).floats(at(a.copies, kExpandStrip)),
                 .stream = a.stream + at(row, std::int64_t{a.copies} * a.width)});
  });
}

void CpuOps::engram_gather(Stream&, const EngramGatherArgs& a) {
  const int scale_bytes = a.width / model::kQ8Block;
  for (std::int64_t i = 0; i < std::int64_t{a.rows} * a.columns; ++i) {
    const std::int64_t id = a.ids[i];
    model::unpack_q8(a.codes + at(id, a.width), a.scales + at(id, scale_bytes),
                     std::span<float>(a.out + at(i, a.width), at(1, a.width)));
  }
}

void CpuOps::engram_apply(Stream&, const EngramApplyArgs& a) {
  const float root = std::pow(static_cast<float>(a.width), -0.5f);
  const auto inverse_norm = [&](const float* x) {
    return 1.0f / std::sqrt(row_.dot(x, x, a.width) / static_cast<float>(a.width) + a.eps);
  };
  reserve_scratch(at(1, a.width) * sizeof(float));
  for_rows(a.rows, 5.0 * a.copies * a.width, [&](int row, int thread) {
    float* weighted = scratch(thread).floats(at(1, a.width));
    const float* keys = a.kv + at(row, std::int64_t{a.copies + 1} * a.width);
    const float* value = keys + at(a.copies, a.width);
    for (int k = 0; k < a.copies; ++k) {
      float* x = a.stream + at(std::int64_t{row} * a.copies + k, a.width);
      const float* key = keys + at(k, a.width);
      const float* qw = a.q_weight + at(k, a.width);
      const float* kw = a.k_weight + at(k, a.width);
      for (int c = 0; c < a.width; ++c) weighted[c] = x[c] * (qw[c] * kw[c]);
      const float d = row_.dot(weighted, key, a.width) * inverse_norm(x) * inverse_norm(key) * root;
      const float gate = sigmoid(std::copysign(std::sqrt(std::max(std::fabs(d), 1e-6f)), d));
      for (int c = 0; c < a.width; ++c) x[c] += gate * value[c];
      store_all(x, at(1, a.width), a.rounding);
    }
  });
}

}  // namespace millrace::dataplane::engine::cpu
