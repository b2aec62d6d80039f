#include "dataplane/transfer/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace millrace::dataplane::transfer {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The check value of the CRC catalogue, and the vectors of RFC 3720, appendix B.4.
TEST(Crc32c, MatchesThePublishedVectors) {
  std::vector<std::byte> ascending(32);
  std::vector<std::byte> descending(32);
  for (std::size_t i = 0; i < 32; ++i) {
    ascending[i] = static_cast<std::byte>(i);
    descending[i] = static_cast<std::byte>(31 - i);
  }
  const std::vector<std::byte> zeros(32);
  const std::vector<std::byte> ones(32, std::byte{0xff});
  for (const auto& crc : {crc32c, crc32c_portable}) {
    EXPECT_EQ(crc(bytes_of("123456789")), 0xE3069283u);
    EXPECT_EQ(crc({}), 0u);
    EXPECT_EQ(crc(zeros), 0x8A9136AAu);
    EXPECT_EQ(crc(ones), 0x62A8AB43u);
    EXPECT_EQ(crc(ascending), 0x46DD794Eu);
    EXPECT_EQ(crc(descending), 0x113FDB5Cu);
  }
}

TEST(Crc32c, BothWaysAgreeOnEveryLengthAndAlignment) {
  std::mt19937 random(5);
  std::vector<std::byte> buffer(300);
  for (std::byte& byte : buffer) byte = static_cast<std::byte>(random());
  for (std::size_t start = 0; start < 9; ++start) {
    for (std::size_t length = 0; start + length <= buffer.size(); ++length) {
      const auto part = std::span<const std::byte>(buffer).subspan(start, length);
      ASSERT_EQ(crc32c(part), crc32c_portable(part)) << start << "+" << length;
    }
  }
}

}  // namespace
}  // namespace millrace::dataplane::transfer
