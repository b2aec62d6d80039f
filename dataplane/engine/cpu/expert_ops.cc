// Routing and experts (model specification, section 2.5).
#include <algorithm>
#include <cmath>
#include <vector>

#include "dataplane/engine/cpu/cpu_ops.h"
#include "dataplane/engine/cpu/indexing.h"

namespace millrace::dataplane::engine::cpu {
namespace {

float softplus(float x) {
  // Beyond 20 the difference to x is below float32's resolution.
  return x > 20.0f ? x : std::log1p(std::exp(x));
}

}  // namespace

void CpuOps::route(Stream& stream, const RouteArgs& a) {
  const auto experts = static_cast<std::size_t>(a.experts);
  auto* scores =
      reinterpret_cast<float*>(stream.workspace(experts * (sizeof(float) + sizeof(std::int32_t))));
  auto* order = reinterpret_cast<std::int32_t*>(scores + experts);
  for (int row = 0; row < a.rows; ++row) {
    const float* logits = a.logits + at(row, a.experts);
    for (std::size_t e = 0; e < experts; ++e) {
      scores[e] = std::sqrt(softplus(logits[e] / a.temperature));
      order[e] = static_cast<std::int32_t>(e);
    }
    const auto better = [&](std::int32_t x, std::int32_t y) {
      const float sx = scores[x] + a.bias[x];
      const float sy = scores[y] + a.bias[y];
      return sx != sy ? sx > sy : x < y;
    };
    std::partial_sort(order, order + a.top_k, order + experts, better);
    std::sort(order, order + a.top_k);
    float total = 0;
    for (int i = 0; i < a.top_k; ++i) total += scores[order[i]];
    total += 1e-20f;
    for (int i = 0; i < a.top_k; ++i) {
      const std::size_t place = at(row, a.top_k) + static_cast<std::size_t>(i);
      a.ids[place] = order[i];
      a.weights[place] = scores[order[i]] / total * a.scale;
    }
  }
}

void CpuOps::swiglu(Stream&, const SwigluArgs& a) {
  for (int row = 0; row < a.rows; ++row) {
    const float weight = a.weights != nullptr ? a.weights[row] : 1.0f;
    for (std::size_t i = at(row, a.width); i < at(row + 1, a.width); ++i) {
      float g = a.g[i];
      float u = a.u[i];
      if (a.limit > 0) {
        g = std::min(g, a.limit);
        u = std::clamp(u, -a.limit, a.limit);
      }
      const float silu = g / (1.0f + std::exp(-g));
      a.out[i] = stored(silu * u * weight, a.rounding);
    }
  }
}

void CpuOps::routed_experts(Stream& stream, const RoutedExpertsArgs& a) {
  // Scratch for the rows of one expert; a row goes to an expert at most once.
  const std::size_t floats = at(a.rows, 2 * a.width + 2 * a.inner + 1);
  auto* x = reinterpret_cast<float*>(
      stream.workspace(floats * sizeof(float) + at(a.rows, 1) * sizeof(std::int32_t)));
  float* y = x + at(a.rows, a.width);
  float* g = y + at(a.rows, a.width);
  float* u = g + at(a.rows, a.inner);
  float* weights = u + at(a.rows, a.inner);
  auto* members = reinterpret_cast<std::int32_t*>(weights + a.rows);
  const auto product = [&](const float* in, int inputs, const float* weight, int outputs, int rows,
                           float* out) {
    kernels_.matmul({.x = in,
                     .x_stride = at(1, inputs),
                     .rows = rows,
                     .w = weight,
                     .w_stride = at(1, inputs),
                     .outputs = outputs,
                     .inputs = inputs,
                     .y = out,
                     .y_stride = at(1, outputs)});
    store_all(out, at(rows, outputs), a.rounding);
  };

  std::fill_n(a.out, at(a.rows, a.width), 0.0f);
  for (int expert = 0; expert < a.experts; ++expert) {
    int count = 0;
    for (int row = 0; row < a.rows; ++row) {
      for (int k = 0; k < a.top_k; ++k) {
        if (a.ids[at(row, a.top_k) + static_cast<std::size_t>(k)] != expert) continue;
        members[count] = row;
        weights[count] = a.weights[at(row, a.top_k) + static_cast<std::size_t>(k)];
        std::copy_n(a.x + at(row, a.width), a.width, x + at(count, a.width));
        ++count;
      }
    }
    if (count == 0) continue;
    const ExpertWeights& w = a.table[expert];
    product(x, a.width, w.w1, a.inner, count, g);
    product(x, a.width, w.w3, a.inner, count, u);
    swiglu(stream, {.rows = count,
                    .width = a.inner,
                    .g = g,
                    .u = u,
                    .weights = weights,
                    .limit = a.limit,
                    .rounding = a.rounding,
                    .out = g});
    if (a.rounding == Rounding::kBf16) {
      quantize(stream,
               {.format = QuantFormat::kQ8, .rows = count, .width = a.inner, .x = g, .out = g});
    }
    product(g, a.inner, w.w2, a.width, count, y);
    for (int i = 0; i < count; ++i) {
      float* out = a.out + at(members[i], a.width);
      const float* part = y + at(i, a.width);
      for (int c = 0; c < a.width; ++c) out[c] += part[c];
    }
  }
}

}  // namespace millrace::dataplane::engine::cpu
