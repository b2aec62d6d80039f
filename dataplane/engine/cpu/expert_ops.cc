// Routing and experts (model specification, section 2.5).
#include <algorithm>
#include <cmath>

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
  for_rows(a.rows, 8.0 * a.width, [&](int row, int) {
    row_.swiglu({.g = a.g + at(row, a.width),
                 .u = a.u + at(row, a.width),
                 .width = a.width,
                 .weight = a.weights != nullptr ? a.weights[row] : 1.0f,
                 .limit = a.limit,
                 .rounding = a.rounding,
                 .out = a.out + at(row, a.width)});
  });
}

void CpuOps::routed_experts(Stream& stream, const RoutedExpertsArgs& a) {
  // Scratch: for every pair of a row and its expert, in order of experts, the row's number, its
  // weight, its x and its inner activations.
  const int pairs = a.rows * a.top_k;
  const std::size_t floats = at(pairs, a.width + 2 * std::int64_t{a.inner} + 1);
  auto* x = reinterpret_cast<float*>(stream.workspace(
      floats * sizeof(float) + at(std::int64_t{pairs} + a.experts + 1, 1) * sizeof(std::int32_t)));
  const ExpertPairs p{.x = x,
                      .g = x + at(pairs, a.width),
                      .u = x + at(pairs, a.width + std::int64_t{a.inner}),
                      .weight = x + at(pairs, a.width + 2 * std::int64_t{a.inner}),
                      .row = reinterpret_cast<std::int32_t*>(x + floats),
                      .first = reinterpret_cast<std::int32_t*>(x + floats) + pairs};
  collect_pairs(a, p);
  products_.reserve(a.width);
  products_.reserve(a.inner);
  reserve_scratch(at(a.rows, a.width) * sizeof(float));
  const double rows_per_expert = std::max(1.0, double{1} * pairs / a.experts);

  const int inner = products_.chunk(a.inner, 2 * rows_per_expert * a.width);
  const int inner_chunks = (a.inner + inner - 1) / inner;
  pool_.run(a.experts * inner_chunks, [&](int task, int thread) {
    const int first = task % inner_chunks * inner;
    inner_activations(a, p, task / inner_chunks, first, std::min(inner, a.inner - first), thread);
  });

  const int outer = products_.chunk(a.width, pairs * double{1} * a.inner);
  pool_.run((a.width + outer - 1) / outer, [&](int task, int thread) {
    const int first = task * outer;
    sum_of_experts(a, p, first, std::min(outer, a.width - first), thread);
  });
}

/// Sorts the pairs by expert, rows ascending within one.
void CpuOps::collect_pairs(const RoutedExpertsArgs& a, const ExpertPairs& p) {
  std::int32_t next = 0;
  for (int expert = 0; expert < a.experts; ++expert) {
    p.first[expert] = next;
    for (int i = 0; i < a.rows * a.top_k; ++i) {
      if (a.ids[i] != expert) continue;
      p.row[next] = i / a.top_k;
      p.weight[next] = a.weights[i];
      ++next;
    }
  }
  p.first[a.experts] = next;
  for_rows(next, a.width, [&](int pair, int) {
    std::copy_n(a.x + at(p.row[pair], a.width), a.width, p.x + at(pair, a.width));
  });
}

/// Gate, up and their combination for inner channels [first, first + count) of one expert's rows.
void CpuOps::inner_activations(const RoutedExpertsArgs& a, const ExpertPairs& p, int expert,
                               int first, int count, int thread) {
  const std::int32_t begin = p.first[expert];
  const int rows = p.first[expert + 1] - begin;
  if (rows == 0) return;
  const auto product = [&](const WeightMatrix& weight, float* out) {
    products_.run_part({.x = p.x + at(begin, a.width),
                        .x_stride = at(1, a.width),
                        .rows = rows,
                        .weight = &weight,
                        .first_output = first,
                        .outputs = count,
                        .rounding = a.rounding,
                        .y = out + at(begin, a.inner) + first,
                        .y_stride = at(1, a.inner)},
                       thread);
  };
  product(a.table[expert].w1, p.g);
  product(a.table[expert].w3, p.u);
  for (int pair = begin; pair < begin + rows; ++pair) {
    float* g = p.g + at(pair, a.inner) + first;
    row_.swiglu({.g = g,
                 .u = p.u + at(pair, a.inner) + first,
                 .width = count,
                 .weight = p.weight[pair],
                 .limit = a.limit,
                 .rounding = a.rounding,
                 .out = g});
    if (a.rounding == Rounding::kBf16) row_.round_q8(g, count);
  }
}

/// Output channels [first, first + count) of every row: the experts' products, added in order of
/// experts.
void CpuOps::sum_of_experts(const RoutedExpertsArgs& a, const ExpertPairs& p, int first, int count,
                            int thread) {
  for (int row = 0; row < a.rows; ++row) {
    std::fill_n(a.out + at(row, a.width) + first, count, 0.0f);
  }
  for (int expert = 0; expert < a.experts; ++expert) {
    const std::int32_t begin = p.first[expert];
    const int rows = p.first[expert + 1] - begin;
    if (rows == 0) continue;
    float* y = scratch(thread).floats(at(rows, count));
    products_.run_part({.x = p.g + at(begin, a.inner),
                        .x_stride = at(1, a.inner),
                        .rows = rows,
                        .weight = &a.table[expert].w2,
                        .first_output = first,
                        .outputs = count,
                        .rounding = a.rounding,
                        .y = y,
                        .y_stride = at(1, count)},
                       thread);
    for (int i = 0; i < rows; ++i) {
      float* out = a.out + at(p.row[begin + i], a.width) + first;
      const float* part = y + at(i, count);
      for (int c = 0; c < count; ++c) out[c] += part[c];
    }
  }
}

}  // namespace millrace::dataplane::engine::cpu
