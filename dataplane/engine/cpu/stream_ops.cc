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
/// column step last. c [copies, copies], source outer, in and out.
void sinkhorn(float* c, int copies, int rounds, float eps) {
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
  for (int row = 0; row < a.rows; ++row) {
    const float* x = a.stream + at(row, inputs);
    const float factor =
        1.0f / std::sqrt(dot(x, x, inputs) / static_cast<float>(inputs) + a.norm_eps);
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
    sinkhorn(c, n, a.sinkhorn_rounds, a.hc_eps);
  }
}

void CpuOps::collapse(Stream&, const CollapseArgs& a) {
  for (int row = 0; row < a.rows; ++row) {
    const float* mix = a.a + at(row, a.copies);
    const float* x = a.stream + at(row, std::int64_t{a.copies} * a.width);
    float* out = a.out + at(row, a.width);
    for (int c = 0; c < a.width; ++c) out[c] = mix[0] * x[c];
    for (int k = 1; k < a.copies; ++k) {
      const float* copy = x + at(k, a.width);
      for (int c = 0; c < a.width; ++c) out[c] += mix[k] * copy[c];
    }
    store_all(out, at(1, a.width), a.rounding);
  }
}

void CpuOps::expand(Stream& stream, const ExpandArgs& a) {
  const std::size_t row_floats = at(a.copies, a.width);
  auto* before = reinterpret_cast<float*>(stream.workspace(row_floats * sizeof(float)));
  for (int row = 0; row < a.rows; ++row) {
    const float* p = a.p + at(row, a.copies);
    const float* mix = a.c + at(row, std::int64_t{a.copies} * a.copies);
    const float* y = a.y + at(row, a.width);
    float* x = a.stream + at(row, std::int64_t{a.copies} * a.width);
    std::copy_n(x, row_floats, before);
    for (int k = 0; k < a.copies; ++k) {
      float* out = x + at(k, a.width);
      for (int c = 0; c < a.width; ++c) out[c] = p[k] * y[c];
      for (int j = 0; j < a.copies; ++j) {
        const float share = mix[j * a.copies + k];
        const float* source = before + at(j, a.width);
        for (int c = 0; c < a.width; ++c) out[c] += share * source[c];
      }
      store_all(out, at(1, a.width), a.rounding);
    }
  }
}

void CpuOps::engram_gather(Stream&, const EngramGatherArgs& a) {
  const int scale_bytes = a.width / model::kQ8Block;
  for (std::int64_t i = 0; i < std::int64_t{a.rows} * a.columns; ++i) {
    const std::int64_t id = a.ids[i];
    model::unpack_q8(a.codes + at(id, a.width), a.scales + at(id, scale_bytes),
                     std::span<float>(a.out + at(i, a.width), at(1, a.width)));
  }
}

void CpuOps::engram_apply(Stream& stream, const EngramApplyArgs& a) {
  auto* weighted = reinterpret_cast<float*>(stream.workspace(at(1, a.width) * sizeof(float)));
  const float root = std::pow(static_cast<float>(a.width), -0.5f);
  const auto inverse_norm = [&](const float* x) {
    return 1.0f / std::sqrt(dot(x, x, a.width) / static_cast<float>(a.width) + a.eps);
  };
  for (int row = 0; row < a.rows; ++row) {
    const float* keys = a.kv + at(row, std::int64_t{a.copies + 1} * a.width);
    const float* value = keys + at(a.copies, a.width);
    for (int k = 0; k < a.copies; ++k) {
      float* x = a.stream + at(std::int64_t{row} * a.copies + k, a.width);
      const float* key = keys + at(k, a.width);
      const float* qw = a.q_weight + at(k, a.width);
      const float* kw = a.k_weight + at(k, a.width);
      for (int c = 0; c < a.width; ++c) weighted[c] = x[c] * (qw[c] * kw[c]);
      const float d = dot(weighted, key, a.width) * inverse_norm(x) * inverse_norm(key) * root;
      const float gate = sigmoid(std::copysign(std::sqrt(std::max(std::fabs(d), 1e-6f)), d));
      for (int c = 0; c < a.width; ++c) x[c] += gate * value[c];
      store_all(x, at(1, a.width), a.rounding);
    }
  }
}

}  // namespace millrace::dataplane::engine::cpu
