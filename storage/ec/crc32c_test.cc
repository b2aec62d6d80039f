#include "storage/ec/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace millrace::storage::ec {
namespace {

std::uint32_t bit_by_bit(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xffffffffU;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
  }
  return ~crc;
}

// RFC 3720, appendix B.4, and the check value of the CRC catalogue.
TEST(Crc32c, PublishedVectors) {
  std::vector<std::byte> bytes(32, std::byte{0});
  EXPECT_EQ(crc32c(bytes), 0x8a9136aaU);
  bytes.assign(32, std::byte{0xff});
  EXPECT_EQ(crc32c(bytes), 0x62a8ab43U);
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(bytes), 0x46dd794eU);
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(31 - i);
  EXPECT_EQ(crc32c(bytes), 0x113fdb5cU);
  const std::string_view check = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(check))), 0xe3069283U);
  EXPECT_EQ(crc32c({}), 0U);
}

TEST(Crc32c, EqualsTheDefinitionAtAnyLengthAndCut) {
  std::mt19937 random(7);
  for (std::size_t length = 0; length < 700; length += 1 + length / 16) {
    std::vector<std::byte> bytes(length);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    const std::uint32_t expected = bit_by_bit(bytes);
    EXPECT_EQ(crc32c(bytes), expected);
    const std::size_t cut = length == 0 ? 0 : random() % length;
    const std::span<const std::byte> all(bytes);
    EXPECT_EQ(crc32c_extend(crc32c(all.first(cut)), all.subspan(cut)), expected);
  }
}

TEST(Crc32c, EqualsTheDefinitionAtEveryAlignment) {
  std::mt19937 random(5);
  std::vector<std::byte> buffer(300);
  for (std::byte& byte : buffer) byte = static_cast<std::byte>(random());
  for (std::size_t start = 0; start < 9; ++start) {
    for (std::size_t length = 0; start + length <= buffer.size(); ++length) {
      const auto part = std::span<const std::byte>(buffer).subspan(start, length);
      ASSERT_EQ(crc32c(part), bit_by_bit(part)) << start << "+" << length;
    }
  }
}

}  // namespace
}  // namespace millrace::storage::ec
