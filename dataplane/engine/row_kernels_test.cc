// Row kernels: the portable ones against plain arithmetic in double precision, the others against
// them, bit by bit.
#include "dataplane/engine/cpu/row_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "dataplane/engine/cpu/kernels.h"
#include "dataplane/engine/test_values.h"
#include "dataplane/model/number_formats.h"

namespace millrace::dataplane::engine::cpu {
namespace {

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr Rounding kRoundings[] = {Rounding::kNone, Rounding::kBf16};

/// Runs `compute` with the portable kernels and with those of this CPU and expects equal bits;
/// returns them.
template <typename Compute>
std::vector<float> same_for_all(Compute compute) {
  std::vector<float> expected = compute(portable_row_kernels());
  EXPECT_TRUE(same_bits(expected, compute(best_kernels().rows())));
  return expected;
}

TEST(RowKernels, DotIsASumOfProducts) {
  for (const int count : {0, 1, 15, 16, 17, 100, 1280}) {
    const auto x = random_values(size(count), 1), y = random_values(size(count), 2);
    const auto sum = same_for_all([&](const RowKernels& kernels) {
      return std::vector<float>{kernels.dot(x.data(), y.data(), count)};
    });
    double expected = 0;
    for (std::size_t i = 0; i < x.size(); ++i) expected += double{x[i]} * double{y[i]};
    EXPECT_NEAR(sum[0], expected, 1e-5);
  }
}

TEST(RowKernels, RmsNormScalesToTheRootMeanSquare) {
  for (const Rounding rounding : kRoundings) {
    for (const int width : {1, 16, 50, 256}) {
      const auto x = random_values(size(width), 1, 4.0f), weight = random_values(size(width), 2);
      const auto out = same_for_all([&](const RowKernels& kernels) {
        std::vector<float> y(x.size());
        kernels.rms_norm({x.data(), weight.data(), width, 1e-20f, rounding, y.data()});
        return y;
      });
      double square = 0;
      for (const float value : x) square += double{value} * double{value};
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double expected = double{weight[i]} * double{x[i]} / std::sqrt(square / width);
        EXPECT_NEAR(out[i], expected,
                    rounding == Rounding::kNone ? 1e-6 : std::fabs(expected) / 256);
      }
    }
  }
}

TEST(RowKernels, CollapseAndExpandMixTheCopies) {
  for (const Rounding rounding : kRoundings) {
    for (const int copies : {1, 3, 4}) {
      for (const int width : {5, 64, 200}) {
        const auto stream = random_values(size(copies * width), 1);
        const auto a = random_values(size(copies), 2), p = random_values(size(copies), 3);
        const auto c = random_values(size(copies * copies), 4), y = random_values(size(width), 5);
        const double tolerance = rounding == Rounding::kNone ? 1e-6 : 0.02;
        const auto collapsed = same_for_all([&](const RowKernels& kernels) {
          std::vector<float> out(size(width));
          kernels.collapse({a.data(), stream.data(), copies, width, rounding, out.data()});
          return out;
        });
        const auto expanded = same_for_all([&](const RowKernels& kernels) {
          std::vector<float> next = stream, before(size(copies * kExpandStrip));
          kernels.expand(
              {p.data(), c.data(), y.data(), copies, width, rounding, before.data(), next.data()});
          return next;
        });
        for (int i = 0; i < width; ++i) {
          double sum = 0;
          for (int k = 0; k < copies; ++k)
            sum += double{a[size(k)]} * double{stream[size(k * width + i)]};
          EXPECT_NEAR(collapsed[size(i)], sum, tolerance);
          for (int k = 0; k < copies; ++k) {
            sum = double{p[size(k)]} * double{y[size(i)]};
            for (int j = 0; j < copies; ++j)
              sum += double{c[size(j * copies + k)]} * double{stream[size(j * width + i)]};
            EXPECT_NEAR(expanded[size(k * width + i)], sum, tolerance);
          }
        }
      }
    }
  }
}

TEST(RowKernels, RopeTurnsPairs) {
  for (const Rounding rounding : kRoundings) {
    const int pairs = 13;
    const auto x = random_values(size(2 * pairs), 1);
    const auto cosine = random_values(size(pairs), 2), sine = random_values(size(pairs), 3);
    const auto out = same_for_all([&](const RowKernels& kernels) {
      std::vector<float> y = x;
      kernels.rope({cosine.data(), sine.data(), -1.0f, pairs, rounding, y.data()});
      return y;
    });
    for (std::size_t i = 0; i < size(pairs); ++i) {
      const double even = double{x[2 * i]}, odd = double{x[2 * i + 1]};
      const double c = double{cosine[i]}, s = -double{sine[i]};
      EXPECT_NEAR(out[2 * i], even * c - odd * s, rounding == Rounding::kNone ? 1e-6 : 0.01);
      EXPECT_NEAR(out[2 * i + 1], even * s + odd * c, rounding == Rounding::kNone ? 1e-6 : 0.01);
    }
  }
}

TEST(RowKernels, SwigluFollowsTheExactFunction) {
  for (const float limit : {0.0f, 10.0f}) {
    const int width = 4001;
    const auto g = random_values(size(width), 1, 60.0f), u = random_values(size(width), 2, 20.0f);
    const auto out = same_for_all([&](const RowKernels& kernels) {
      std::vector<float> y(size(width));
      kernels.swiglu({g.data(), u.data(), width, 0.5f, limit, Rounding::kNone, y.data()});
      return y;
    });
    for (std::size_t i = 0; i < out.size(); ++i) {
      double gi = double{g[i]}, ui = double{u[i]};
      if (limit > 0) {
        gi = std::min(gi, 10.0);
        ui = std::clamp(ui, -10.0, 10.0);
      }
      const double expected = gi / (1 + std::exp(-gi)) * ui * 0.5;
      EXPECT_NEAR(out[i], expected, std::fabs(expected) * 1e-6 + 1e-30) << gi << " " << ui;
    }
  }
}

TEST(RowKernels, SoftmaxWeightsAndSum) {
  for (const int count : {0, 1, 7, 16, 33, 256}) {
    for (const float sink : {-3.0f, 40.0f}) {
      const auto scores = random_values(size(count), 1, 200.0f);
      const auto out = same_for_all([&](const RowKernels& kernels) {
        std::vector<float> weights = scores;
        weights.push_back(kernels.softmax(weights.data(), count, 0.25f, sink));
        return weights;
      });
      double largest = -1e30, total = 0;
      for (const float score : scores) largest = std::max(largest, double{score} * 0.25);
      for (std::size_t i = 0; i < scores.size(); ++i) {
        // The exponent is a difference of float32 numbers of up to 50: it is off by 4e-6 at most.
        const double expected = std::exp(double{scores[i]} * 0.25 - largest);
        EXPECT_NEAR(out[i], expected, expected * 1e-5 + 1e-37);
        total += expected;
      }
      if (count == 0) continue;  // the sink alone: the divisor means nothing
      total += std::exp(double{sink} - largest);
      EXPECT_NEAR(out.back(), total, total * 1e-5);
    }
  }
}

TEST(RowKernels, RoundsThroughQ8AsTheFormatSays) {
  for (const float magnitude : {1e-6f, 1e-3f, 1.0f, 448.0f, 1e6f}) {
    auto x = random_values(6400, 1, magnitude);
    std::mt19937 random(2);
    // Every binary order of magnitude inside a block, zeros of both signs, ties.
    for (float& value : x) value = std::ldexp(value, -static_cast<int>(random() % 20));
    x[0] = 0.0f;
    x[1] = -0.0f;
    x[2] = 1.0625f * magnitude;
    same_for_all([&](const RowKernels& kernels) {
      std::vector<float> y = x;
      kernels.round_q8(y.data(), static_cast<int>(y.size()));
      std::vector<float> expected = x;
      model::round_q8(expected);
      EXPECT_TRUE(same_bits(y, expected)) << magnitude;
      return y;
    });
  }
}

TEST(RowKernels, UnpacksEveryCodeOfBothFourBitFormats) {
  std::vector<std::uint8_t> codes(2048);
  std::mt19937 random(3);
  for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(random());
  const int width = static_cast<int>(codes.size()) * 2;
  for (const Q4Kind kind : {Q4Kind::kQ4g, Q4Kind::kQ4i}) {
    std::vector<std::uint8_t> scales(size(width) / (kind == Q4Kind::kQ4g ? 16 : 32));
    for (std::size_t i = 0; i < scales.size(); ++i) {
      scales[i] = static_cast<std::uint8_t>(i);
      const std::uint8_t nan = kind == Q4Kind::kQ4g ? 0x7F : 0xFF;
      if ((scales[i] & nan) == nan) scales[i] = 0;
    }
    same_for_all([&](const RowKernels& kernels) {
      std::vector<float> out(size(width));
      kernels.unpack_q4({kind, codes.data(), scales.data(), width, out.data()});
      return out;
    });
  }
}

}  // namespace
}  // namespace millrace::dataplane::engine::cpu
