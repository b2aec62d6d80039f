#include "dataplane/transfer/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace millrace::dataplane::transfer {
namespace {

using Table = std::array<std::array<std::uint32_t, 256>, 8>;

/// Slicing by 8 (Kounavis and Berry, "A systematic approach to building high performance
/// software-based CRC generators", 2005): table[k][b] is byte b followed by k zero bytes.
constexpr Table make_table() {
  Table table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = table[k - 1][byte];
      table[k][byte] = (before >> 8) ^ table[0][before & 0xff];
    }
  }
  return table;
}

constexpr Table kTable = make_table();

std::uint32_t step(std::uint32_t crc, std::byte byte) {
  return (crc >> 8) ^ kTable[0][(crc ^ static_cast<std::uint32_t>(byte)) & 0xff];
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(std::span<const std::byte> bytes) {
  std::uint64_t crc = 0xffffffff;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  auto tail = static_cast<std::uint32_t>(crc);
  for (; i < bytes.size(); ++i) tail = _mm_crc32_u8(tail, static_cast<std::uint8_t>(bytes[i]));
  return ~tail;
}
#endif

}  // namespace

std::uint32_t crc32c_portable(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xffffffff;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint32_t next = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      auto byte = static_cast<std::uint32_t>(bytes[i + k]);
      if (k < 4) byte ^= (crc >> (8 * k)) & 0xff;
      next ^= kTable[7 - k][byte];
    }
    crc = next;
  }
  for (; i < bytes.size(); ++i) crc = step(crc, bytes[i]);
  return ~crc;
}

std::uint32_t crc32c(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return crc32c_sse42(bytes);
#endif
  return crc32c_portable(bytes);
}

}  // namespace millrace::dataplane::transfer
