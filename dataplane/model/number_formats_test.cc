#include "dataplane/model/number_formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace millrace::dataplane::model {
namespace {

/// The nearest of `values` to x by exhaustive search, ties to the even code; codes ascend in
/// magnitude.
int nearest_code(const std::vector<double>& magnitudes, double x) {
  int best = 0;
  for (int code = 1; code < static_cast<int>(magnitudes.size()); ++code) {
    const double d = std::fabs(magnitudes[static_cast<std::size_t>(code)] - x);
    const double e = std::fabs(magnitudes[static_cast<std::size_t>(best)] - x);
    if (d < e || (d == e && code % 2 == 0)) best = code;
  }
  return best;
}

std::vector<double> e4m3_magnitudes() {
  std::vector<double> values;
  for (int code = 0; code < 127; ++code) {
    const int exponent = code >> 3;
    const int mantissa = code & 7;
    values.push_back(exponent == 0 ? std::ldexp(mantissa, -9)
                                   : std::ldexp(8 + mantissa, exponent - 10));
  }
  return values;
}

const std::vector<double> kE2m1 = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

TEST(E4m3, DecodesAllCodes) {
  const std::vector<double> magnitudes = e4m3_magnitudes();
  for (int code = 0; code < 256; ++code) {
    const float value = decode_e4m3(static_cast<std::uint8_t>(code));
    if ((code & 127) == 127) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(std::fabs(value), magnitudes[static_cast<std::size_t>(code & 127)]);
      EXPECT_EQ(std::signbit(value), code >= 128);
    }
  }
  EXPECT_EQ(decode_e4m3(0x7E), 448.0f);
  EXPECT_EQ(decode_e4m3(0x01), std::ldexp(1.0f, -9));
}

TEST(E4m3, EncodesEveryCodeMidpointAndNeighbour) {
  const std::vector<double> magnitudes = e4m3_magnitudes();
  for (int code = 0; code < 126; ++code) {
    const auto low = static_cast<float>(magnitudes[static_cast<std::size_t>(code)]);
    const auto high = static_cast<float>(magnitudes[static_cast<std::size_t>(code) + 1]);
    const float middle = (low + high) / 2;
    for (float x :
         {low, middle, high, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      const int expected = nearest_code(magnitudes, x);
      EXPECT_EQ(encode_e4m3(x), expected) << x;
      EXPECT_EQ(encode_e4m3(-x), expected | 128) << x;
    }
  }
}

TEST(E4m3, SaturatesAndKeepsTheSignOfZero) {
  EXPECT_EQ(encode_e4m3(1e30f), 0x7E);
  EXPECT_EQ(encode_e4m3(-449.0f), 0xFE);
  EXPECT_EQ(encode_e4m3(-0.0f), 0x80);
  EXPECT_EQ(encode_e4m3(std::ldexp(1.0f, -10)), 0x00);  // halfway to the smallest, even is zero
}

TEST(E2m1, TiesGoToTheEvenCode) {
  const std::vector<std::pair<float, int>> ties = {{0.25f, 0}, {0.75f, 2}, {1.25f, 2}, {1.75f, 4},
                                                   {2.5f, 4},  {3.5f, 6},  {5.0f, 6}};
  for (const auto& [x, code] : ties) {
    EXPECT_EQ(encode_e2m1(x), code) << x;
    EXPECT_EQ(encode_e2m1(-x), code | 8) << x;
  }
}

TEST(E2m1, AgreesWithExhaustiveSearch) {
  for (int i = 0; i <= 8 * 1024; ++i) {
    const float x = static_cast<float>(i) / 1024.0f;
    EXPECT_EQ(encode_e2m1(x), nearest_code(kE2m1, x)) << x;
    EXPECT_EQ(encode_e2m1(-x), nearest_code(kE2m1, x) | 8) << x;
  }
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(encode_e2m1(decode_e2m1(static_cast<std::uint8_t>(code))), code);
  }
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(round_bf16(1.0f), 1.0f);
  const float step = std::ldexp(1.0f, -7);
  EXPECT_EQ(round_bf16(1.0f + step / 2), 1.0f);
  EXPECT_EQ(round_bf16(1.0f + step * 1.5f), 1.0f + 2 * step);
  EXPECT_EQ(round_bf16(std::nextafter(1.0f + step / 2, 2.0f)), 1.0f + step);
  EXPECT_EQ(encode_bf16(-0.0f), 0x8000);
  for (int bits = 0; bits < 0x7F80; ++bits) {
    EXPECT_EQ(encode_bf16(decode_bf16(static_cast<std::uint16_t>(bits))), bits);
  }
}

TEST(E8m0, IsAPowerOfTwo) {
  for (int byte = 0; byte < 255; ++byte) {
    EXPECT_EQ(decode_e8m0(static_cast<std::uint8_t>(byte)), std::ldexp(1.0f, byte - 127));
  }
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
}

TEST(P2ceil, IsTheSmallestPowerOfTwoNotBelow) {
  EXPECT_EQ(p2ceil_exponent(1.0f), 0);
  EXPECT_EQ(p2ceil_exponent(std::nextafter(1.0f, 2.0f)), 1);
  EXPECT_EQ(p2ceil_exponent(0.75f), 0);
  EXPECT_EQ(p2ceil_exponent(0.5f), -1);
  std::mt19937 random(1);
  for (int i = 0; i < 10000; ++i) {
    const float t = std::ldexp(1.0f + static_cast<float>(random() >> 9) * 0x1p-23f,
                               static_cast<int>(random() % 200) - 100);
    const int e = p2ceil_exponent(t);
    EXPECT_GE(std::ldexp(1.0f, e), t);
    EXPECT_LT(std::ldexp(1.0f, e - 1), t);
  }
}

std::vector<float> random_row(std::mt19937& random, std::size_t width) {
  std::vector<float> row(width);
  const float scale = std::ldexp(1.0f, static_cast<int>(random() % 24) - 12);
  for (float& x : row) x = (static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f) * scale;
  return row;
}

/// Round trip of one block by the definition, in double precision.
std::vector<float> by_definition(const std::vector<float>& block, double scale,
                                 const std::vector<double>& codes) {
  std::vector<float> result;
  for (float x : block) {
    const double limit = codes.back();
    const int code =
        nearest_code(codes, std::min(std::fabs(static_cast<double>(x) / scale), limit));
    result.push_back(
        std::copysign(static_cast<float>(codes[static_cast<std::size_t>(code)] * scale), x));
  }
  return result;
}

double largest(const std::vector<float>& block) {
  double value = 0;
  for (float x : block) value = std::max(value, std::fabs(static_cast<double>(x)));
  return value;
}

double p2ceil(float t) { return std::ldexp(1.0, p2ceil_exponent(t)); }

TEST(BlockFormats, RoundTripsFollowTheirDefinitions) {
  std::mt19937 random(2);
  const std::vector<double> e4m3 = e4m3_magnitudes();
  for (int i = 0; i < 2000; ++i) {
    const std::vector<float> row = random_row(random, 32);
    const auto amax = static_cast<float>(largest(row));
    std::vector<float> q8 = row, q4i = row;
    round_q8(q8);
    round_q4i(q4i);
    EXPECT_EQ(q8, by_definition(row, p2ceil(std::max(amax, 1e-4f) * (1.0f / 448)), e4m3));
    EXPECT_EQ(q4i, by_definition(row, p2ceil(std::max(amax, 6 * 0x1p-126f) * (1.0f / 6)), kE2m1));

    const std::vector<float> half(row.begin(), row.begin() + 16);
    std::vector<float> q4g = half;
    round_q4g(q4g);
    const float wanted = std::max(static_cast<float>(largest(half)), 6 * 0x1p-9f) / 6.0f;
    const double scale =
        e4m3[static_cast<std::size_t>(nearest_code(e4m3, std::min<double>(wanted, 448)))];
    std::vector<float> expected;
    for (float x : half) {
      const double ratio = std::min(std::fabs(x / static_cast<float>(scale)), 6.0f);
      expected.push_back(std::copysign(
          static_cast<float>(kE2m1[static_cast<std::size_t>(nearest_code(kE2m1, ratio))] * scale),
          x));
    }
    EXPECT_EQ(q4g, expected);
  }
}

TEST(BlockFormats, PackingAndUnpackingIsTheRoundTrip) {
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    const std::vector<float> row = random_row(random, 64);
    std::vector<std::uint8_t> codes(64), scales(4);
    std::vector<float> unpacked(64);
    std::vector<float> rounded = row;
    pack_q8(row, codes.data(), scales.data());
    unpack_q8(codes.data(), scales.data(), unpacked);
    round_q8(rounded);
    EXPECT_EQ(unpacked, rounded);
    // Values that went through Q8 survive a second time unchanged: windows are handed over that
    // way.
    pack_q8(rounded, codes.data(), scales.data());
    unpack_q8(codes.data(), scales.data(), unpacked);
    EXPECT_EQ(unpacked, rounded);

    rounded = row;
    pack_q4i(row, codes.data(), scales.data());
    unpack_q4i(codes.data(), scales.data(), unpacked);
    round_q4i(rounded);
    EXPECT_EQ(unpacked, rounded);

    rounded = row;
    pack_q4g(row, codes.data(), scales.data());
    unpack_q4g(codes.data(), scales.data(), unpacked);
    round_q4g(rounded);
    EXPECT_EQ(unpacked, rounded);
  }
}

TEST(BlockFormats, EvenChannelsLieInTheLowNibble) {
  std::vector<float> row(32, 0.0f);
  row[0] = 6.0f;
  row[1] = -0.5f;
  row[3] = -0.0f;
  std::vector<std::uint8_t> codes(16), scales(1);
  pack_q4i(row, codes.data(), scales.data());
  EXPECT_EQ(codes[0], 0x97);
  EXPECT_EQ(codes[1], 0x80);
  EXPECT_EQ(scales[0], 127);
}

TEST(BlockFormats, ZeroBlocksGetTheSmallestScale) {
  const std::vector<float> zeros(32, 0.0f);
  std::vector<std::uint8_t> codes(32), scales(2);
  pack_q8(zeros, codes.data(), scales.data());
  EXPECT_EQ(scales[0], 127 - 22);  // p2ceil(1e-4 / 448)
  pack_q4g(zeros, codes.data(), scales.data());
  EXPECT_EQ(scales[0], 0x01);  // 2^-9
}

}  // namespace
}  // namespace millrace::dataplane::model
