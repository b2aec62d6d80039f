#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace millrace::dataplane::model {

/// The number formats of the architecture, bit exact (model specification, section 1.3).
///
///   bf16   upper half of a float32, rounded to nearest, ties to even
///   E4M3   OCP e4m3fn: bias 7, largest 448, smallest subnormal 2^-9, 0x7F and 0xFF are NaN
///   E2M1   sign and magnitude 0, .5, 1, 1.5, 2, 3, 4, 6
///   E8M0   2^(byte − 127)
///   Q8     32 channels, E4M3 codes, one E8M0 scale: activations and window latents
///   Q4i    32 channels, E2M1 codes, one E8M0 scale: indexer queries and keys, expert weights
///   Q4g    16 channels, E2M1 codes, one E4M3 scale: global KV entries
///
/// Two E2M1 codes share a byte, the even channel in the low nibble. All encoders saturate, keep the
/// sign of zero, and take finite values only.

inline constexpr int kQ8Block = 32;
inline constexpr int kQ4iBlock = 32;
inline constexpr int kQ4gBlock = 16;
/// Edge of the square tile that shares one scale of an FP8 weight; also the inputs of one row that
/// share a scale of an FP4 weight.
inline constexpr int kWeightBlock = 32;

// In the header because every operator of the engine ends with them.
inline std::uint16_t encode_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline float decode_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
inline float round_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u);
}

float decode_e4m3(std::uint8_t code);
std::uint8_t encode_e4m3(float x);

float decode_e2m1(std::uint8_t code);
std::uint8_t encode_e2m1(float x);

/// 2^(byte − 127); byte 255 is NaN.
float decode_e8m0(std::uint8_t byte);

/// Exponent of the smallest power of two that is not below t, for normal t > 0.
int p2ceil_exponent(float t);

/// Round trips in place; the width is a multiple of the block.
void round_q8(std::span<float> x);
void round_q4i(std::span<float> x);
void round_q4g(std::span<float> x);

/// Codes and scales of one row.
/// q8:  codes [width], scales [width / 32] E8M0
/// q4i: codes [width / 2], scales [width / 32] E8M0
/// q4g: codes [width / 2], scales [width / 16] E4M3
void pack_q8(std::span<const float> x, std::uint8_t* codes, std::uint8_t* scales);
void pack_q4i(std::span<const float> x, std::uint8_t* codes, std::uint8_t* scales);
void pack_q4g(std::span<const float> x, std::uint8_t* codes, std::uint8_t* scales);

/// The inverse: the values, exactly as the round trips leave them.
void unpack_q8(const std::uint8_t* codes, const std::uint8_t* scales, std::span<float> x);
void unpack_q4i(const std::uint8_t* codes, const std::uint8_t* scales, std::span<float> x);
void unpack_q4g(const std::uint8_t* codes, const std::uint8_t* scales, std::span<float> x);

}  // namespace millrace::dataplane::model
