#include "dataplane/model/number_formats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/check.h"

namespace millrace::dataplane::model {
namespace {

constexpr float kE4m3Max = 448.0f;
constexpr float kE2m1Max = 6.0f;
constexpr float kInverse448 = 1.0f / 448.0f;
constexpr float kInverse6 = 1.0f / 6.0f;

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

/// 2^exponent for a normal result.
constexpr float pow2(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

/// Unbiased exponent field of a non-negative value; zero and subnormals give −127.
int exponent_of(float magnitude) { return static_cast<int>(bits_of(magnitude) >> 23) - 127; }

/// Rounds to nearest, ties to even, for 0 <= x < 2^22: adding 2^23 leaves no room for a fraction.
float round_to_integer(float x) {
  constexpr float kNoFraction = 8388608.0f;
  const float shifted = x + kNoFraction;
  return shifted - kNoFraction;
}

constexpr std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15;
    const int mantissa = code & 7;
    float value = 0;
    if ((code & 127) == 127) {
      value = std::numeric_limits<float>::quiet_NaN();
    } else if (exponent == 0) {
      value = static_cast<float>(mantissa) * pow2(-9);
    } else {
      value = static_cast<float>(8 + mantissa) * pow2(exponent - 10);
    }
    table[static_cast<std::size_t>(code)] = code & 128 ? -value : value;
  }
  return table;
}

constexpr std::array<float, 256> kE4m3 = make_e4m3_table();
constexpr std::array<float, 16> kE2m1 = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                         -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

float largest_magnitude(std::span<const float> x) {
  // As integers, which order like the magnitudes and, unlike floats, vectorise without further
  // promises.
  std::uint32_t largest = 0;
  for (float value : x) largest = std::max(largest, bits_of(value) & 0x7FFFFFFFu);
  return std::bit_cast<float>(largest);
}

// Exponents of the power-of-two scales, of one block.
int q8_exponent(std::span<const float> block) {
  return p2ceil_exponent(std::max(largest_magnitude(block), 1e-4f) * kInverse448);
}

int q4i_exponent(std::span<const float> block) {
  return p2ceil_exponent(std::max(largest_magnitude(block), 6 * pow2(-126)) * kInverse6);
}

std::uint8_t q4g_scale(std::span<const float> block) {
  return encode_e4m3(std::max(largest_magnitude(block), 6 * pow2(-9)) / 6.0f);
}

std::uint8_t e8m0_of(int exponent) { return static_cast<std::uint8_t>(exponent + 127); }

void pack_nibbles(std::span<const float> block, float scale, std::uint8_t* codes) {
  for (std::size_t i = 0; i < block.size(); i += 2) {
    const int low = encode_e2m1(block[i] / scale);
    const int high = encode_e2m1(block[i + 1] / scale);
    codes[i / 2] = static_cast<std::uint8_t>(low | high << 4);
  }
}

/// The two values of every byte, low nibble first.
constexpr std::array<std::array<float, 2>, 256> make_pair_table() {
  std::array<std::array<float, 2>, 256> table{};
  for (std::size_t byte = 0; byte < 256; ++byte) table[byte] = {kE2m1[byte & 15], kE2m1[byte >> 4]};
  return table;
}

constexpr std::array<std::array<float, 2>, 256> kE2m1Pairs = make_pair_table();

template <std::size_t kSize>
void unpack_nibbles(const std::uint8_t* codes, float scale, float* block) {
  for (std::size_t i = 0; i < kSize / 2; ++i) {
    std::memcpy(block + 2 * i, kE2m1Pairs[codes[i]].data(), 2 * sizeof(float));
  }
  for (std::size_t i = 0; i < kSize; ++i) block[i] *= scale;
}

// The values that encode and decode give, without the code in between and without branches, so that
// the compiler can vectorise the loops below.

/// Nearest multiple of the value's own step: `dropped` mantissa bits are rounded away, ties to
/// even.
template <int kDropped>
float drop_mantissa_bits(float x) {
  constexpr std::uint32_t kHalf = (1u << (kDropped - 1)) - 1;
  const std::uint32_t bits = bits_of(x);
  return std::bit_cast<float>((bits + kHalf + (bits >> kDropped & 1)) & ~((1u << kDropped) - 1));
}

float nearest_e4m3(float x) {
  const float magnitude = std::min(std::fabs(x), kE4m3Max);
  constexpr float kFixed = 16384.0f;  // its last place is 2^-9, the step of the subnormals
  const float small = (magnitude + kFixed) - kFixed;
  return std::copysign(magnitude < pow2(-6) ? small : drop_mantissa_bits<20>(magnitude), x);
}

float nearest_e2m1(float x) {
  const float magnitude = std::min(std::fabs(x), kE2m1Max);
  constexpr float kFixed = 4194304.0f;  // its last place is 0.5, the step below 2
  const float small = (magnitude + kFixed) - kFixed;
  return std::copysign(magnitude < 2.0f ? small : drop_mantissa_bits<22>(magnitude), x);
}

/// Calls visit(block index, block) for consecutive blocks of `size` channels.
template <typename T, typename Visit>
void for_each_block(std::span<T> x, std::size_t size, Visit visit) {
  CHECK(x.size() % size == 0, "a row must fill its quantization blocks");
  for (std::size_t i = 0; i * size < x.size(); ++i) visit(i, x.subspan(i * size, size));
}

}  // namespace

float decode_e4m3(std::uint8_t code) { return kE4m3[code]; }

std::uint8_t encode_e4m3(float x) {
  const float magnitude = std::min(std::fabs(x), kE4m3Max);
  const int exponent = std::max(exponent_of(magnitude), -6);
  // In units of the last mantissa bit: 0…7 subnormal, 8…16 normal (16 carries into the exponent).
  const int steps = static_cast<int>(round_to_integer(magnitude * pow2(3 - exponent)));
  const int code = steps < 8 ? steps : ((exponent + 7) << 3) + (steps - 8);
  return static_cast<std::uint8_t>(code | (std::signbit(x) ? 128 : 0));
}

float decode_e2m1(std::uint8_t code) { return kE2m1[code & 15]; }

std::uint8_t encode_e2m1(float x) {
  const float magnitude = std::min(std::fabs(x), kE2m1Max);
  const int exponent = std::max(exponent_of(magnitude), 0);
  const int steps = static_cast<int>(round_to_integer(magnitude * pow2(1 - exponent)));
  const int code = steps < 2 ? steps : 2 * exponent + steps;
  return static_cast<std::uint8_t>(code | (std::signbit(x) ? 8 : 0));
}

float decode_e8m0(std::uint8_t byte) {
  if (byte == 255) return std::numeric_limits<float>::quiet_NaN();
  return byte == 0 ? std::bit_cast<float>(std::uint32_t{1} << 22) : pow2(byte - 127);
}

int p2ceil_exponent(float t) {
  const std::uint32_t bits = bits_of(t);
  return static_cast<int>(bits >> 23 & 255) - 127 + ((bits & 0x7FFFFF) != 0 ? 1 : 0);
}

void pack_q8(std::span<const float> x, std::uint8_t* codes, std::uint8_t* scales) {
  for_each_block(x, kQ8Block, [&](std::size_t i, std::span<const float> block) {
    const int exponent = q8_exponent(block);
    scales[i] = e8m0_of(exponent);
    for (std::size_t c = 0; c < kQ8Block; ++c) {
      codes[i * kQ8Block + c] = encode_e4m3(block[c] * pow2(-exponent));
    }
  });
}

void pack_q4i(std::span<const float> x, std::uint8_t* codes, std::uint8_t* scales) {
  for_each_block(x, kQ4iBlock, [&](std::size_t i, std::span<const float> block) {
    const int exponent = q4i_exponent(block);
    scales[i] = e8m0_of(exponent);
    pack_nibbles(block, pow2(exponent), codes + i * kQ4iBlock / 2);
  });
}

void pack_q4g(std::span<const float> x, std::uint8_t* codes, std::uint8_t* scales) {
  for_each_block(x, kQ4gBlock, [&](std::size_t i, std::span<const float> block) {
    scales[i] = q4g_scale(block);
    pack_nibbles(block, decode_e4m3(scales[i]), codes + i * kQ4gBlock / 2);
  });
}

void unpack_q8(const std::uint8_t* codes, const std::uint8_t* scales, std::span<float> x) {
  for_each_block(x, kQ8Block, [&](std::size_t i, std::span<float> block) {
    const float scale = decode_e8m0(scales[i]);
    for (std::size_t c = 0; c < kQ8Block; ++c) block[c] = kE4m3[codes[i * kQ8Block + c]] * scale;
  });
}

void unpack_q4i(const std::uint8_t* codes, const std::uint8_t* scales, std::span<float> x) {
  for_each_block(x, kQ4iBlock, [&](std::size_t i, std::span<float> block) {
    unpack_nibbles<kQ4iBlock>(codes + i * kQ4iBlock / 2, decode_e8m0(scales[i]), block.data());
  });
}

void unpack_q4g(const std::uint8_t* codes, const std::uint8_t* scales, std::span<float> x) {
  for_each_block(x, kQ4gBlock, [&](std::size_t i, std::span<float> block) {
    unpack_nibbles<kQ4gBlock>(codes + i * kQ4gBlock / 2, decode_e4m3(scales[i]), block.data());
  });
}

void round_q8(std::span<float> x) {
  for_each_block(x, kQ8Block, [](std::size_t, std::span<float> block) {
    const int exponent = q8_exponent(block);
    const float scale = pow2(exponent);
    const float inverse = pow2(-exponent);
    for (std::size_t c = 0; c < kQ8Block; ++c) block[c] = nearest_e4m3(block[c] * inverse) * scale;
  });
}

void round_q4i(std::span<float> x) {
  for_each_block(x, kQ4iBlock, [](std::size_t, std::span<float> block) {
    const float scale = pow2(q4i_exponent(block));
    for (std::size_t c = 0; c < kQ4iBlock; ++c) block[c] = nearest_e2m1(block[c] / scale) * scale;
  });
}

void round_q4g(std::span<float> x) {
  for_each_block(x, kQ4gBlock, [](std::size_t, std::span<float> block) {
    const float scale = decode_e4m3(q4g_scale(block));
    for (std::size_t c = 0; c < kQ4gBlock; ++c) block[c] = nearest_e2m1(block[c] / scale) * scale;
  });
}

}  // namespace millrace::dataplane::model
