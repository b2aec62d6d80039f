#pragma once

// The loops of RowKernels that a compiler vectorises by itself: one definition, inlined into a
// plain function and into one compiled for AVX-512. Nothing here may be contracted or reordered by
// the compiler
// (-ffp-contract=off, no fast-math), so both have equal bits.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "dataplane/engine/cpu/indexing.h"
#include "dataplane/engine/cpu/row_kernels.h"

// A function that stays one by itself would be compiled for the plain instruction set.
#define MILLRACE_INLINED __attribute__((always_inline))
#define MILLRACE_ROW_LOOP MILLRACE_INLINED inline

namespace millrace::dataplane::engine::cpu::row_loops {

/// e^x with an error of about one unit in the last place; x is brought into [−87, 88] first, so
/// that the result is a normal number. Cody-Waite reduction and the polynomial of the Cephes
/// library.
MILLRACE_ROW_LOOP float exponential(float x) {
  x = std::min(std::max(x, -87.0f), 88.0f);
  constexpr float kNoFraction = 12582912.0f;  // 1.5·2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504088896341f + kNoFraction;
  const float n = shifted - kNoFraction;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) << 23;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + exponent);
}

/// Calls loop(round) with a function that rounds to the stored format, so that the choice is
/// outside of the loop.
template <typename Loop>
MILLRACE_ROW_LOOP void with_rounding(Rounding rounding, Loop loop) {
  if (rounding == Rounding::kBf16) {
    loop([](float x) MILLRACE_INLINED { return model::round_bf16(x); });
  } else {
    loop([](float x) MILLRACE_INLINED { return x; });
  }
}

MILLRACE_ROW_LOOP void scale_row(const RmsNormRow& r, float mean_square) {
  const float factor = 1.0f / std::sqrt(mean_square + r.eps);
  with_rounding(r.rounding, [&](auto round) MILLRACE_INLINED {
    for (int c = 0; c < r.width; ++c) r.out[c] = round(r.weight[c] * (r.x[c] * factor));
  });
}

/// Channels that are worked on at a time: they stay in registers or the first-level cache between
/// copies.
constexpr int kStrip = kExpandStrip;

MILLRACE_ROW_LOOP void collapse(const CollapseRow& r) {
  with_rounding(r.rounding, [&](auto round) MILLRACE_INLINED {
    for (int first = 0; first < r.width; first += kStrip) {
      const int count = std::min(kStrip, r.width - first);
      float sum[kStrip];
      const float* __restrict x = r.stream + first;
      for (int c = 0; c < count; ++c) sum[c] = r.a[0] * x[c];
      for (int k = 1; k < r.copies; ++k) {
        const float* __restrict copy = x + at(k, r.width);
        const float share = r.a[k];
        for (int c = 0; c < count; ++c) sum[c] += share * copy[c];
      }
      float* __restrict out = r.out + first;
      for (int c = 0; c < count; ++c) out[c] = round(sum[c]);
    }
  });
}

MILLRACE_ROW_LOOP void expand(const ExpandRow& r) {
  with_rounding(r.rounding, [&](auto round) MILLRACE_INLINED {
    for (int first = 0; first < r.width; first += kStrip) {
      const int count = std::min(kStrip, r.width - first);
      // What every copy was, before the first one is overwritten.
      for (int k = 0; k < r.copies; ++k) {
        const float* __restrict from = r.stream + at(k, r.width) + first;
        float* __restrict to = r.before + at(k, kStrip);
        for (int c = 0; c < count; ++c) to[c] = from[c];
      }
      const float* __restrict y = r.y + first;
      for (int k = 0; k < r.copies; ++k) {
        float sum[kStrip];
        const float own = r.p[k];
        for (int c = 0; c < count; ++c) sum[c] = own * y[c];
        for (int j = 0; j < r.copies; ++j) {
          const float share = r.c[j * r.copies + k];
          const float* __restrict source = r.before + at(j, kStrip);
          for (int c = 0; c < count; ++c) sum[c] += share * source[c];
        }
        float* __restrict out = r.stream + at(k, r.width) + first;
        for (int c = 0; c < count; ++c) out[c] = round(sum[c]);
      }
    }
  });
}

MILLRACE_ROW_LOOP void rope(const RopeRow& r) {
  with_rounding(r.rounding, [&](auto round) MILLRACE_INLINED {
    for (int i = 0; i < r.pairs; ++i) {
      const float even = r.x[2 * i];
      const float odd = r.x[2 * i + 1];
      const float turn = r.sign * r.sine[i];
      r.x[2 * i] = round(even * r.cosine[i] - odd * turn);
      r.x[2 * i + 1] = round(even * turn + odd * r.cosine[i]);
    }
  });
}

MILLRACE_ROW_LOOP void swiglu(const SwigluRow& r) {
  const float limit = r.limit > 0 ? r.limit : INFINITY;
  with_rounding(r.rounding, [&](auto round) MILLRACE_INLINED {
    for (int i = 0; i < r.width; ++i) {
      const float g = std::min(r.g[i], limit);
      const float u = std::min(std::max(r.u[i], -limit), limit);
      const float silu = g / (1.0f + exponential(-g));
      r.out[i] = round(silu * u * r.weight);
    }
  });
}

MILLRACE_ROW_LOOP float softmax(float* scores, int count, float scale, float sink) {
  constexpr int kLaneCount = 16;
  float most[kLaneCount];
  for (float& lane : most) lane = -1e30f;
  const int whole = count / kLaneCount * kLaneCount;
  for (int t = 0; t < whole; t += kLaneCount) {
    for (int i = 0; i < kLaneCount; ++i) {
      scores[t + i] *= scale;
      most[i] = std::max(most[i], scores[t + i]);
    }
  }
  for (int t = whole; t < count; ++t) {
    scores[t] *= scale;
    most[0] = std::max(most[0], scores[t]);
  }
  const float largest = *std::max_element(most, most + kLaneCount);
  float sums[kLaneCount] = {};
  for (int t = 0; t < whole; t += kLaneCount) {
    for (int i = 0; i < kLaneCount; ++i) {
      scores[t + i] = exponential(scores[t + i] - largest);
      sums[i] += scores[t + i];
    }
  }
  for (int t = whole; t < count; ++t) {
    scores[t] = exponential(scores[t] - largest);
    sums[t - whole] += scores[t];
  }
  for (int distance = kLaneCount / 2; distance > 0; distance /= 2) {
    for (int i = 0; i < distance; ++i) sums[i] += sums[i + distance];
  }
  return sums[0] + exponential(sink - largest);
}

}  // namespace millrace::dataplane::engine::cpu::row_loops
