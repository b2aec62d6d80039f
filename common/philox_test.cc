#include "common/philox.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// Known-answer vectors published with the Random123 library (kat_vectors, philox4x32 10).
TEST(Philox, MatchesThePublishedVectors) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(UniformAt, DependsOnEveryPartOfItsKeyAndStaysInRange) {
  const double base = uniform_at(1, 2, 3);
  EXPECT_EQ(base, uniform_at(1, 2, 3));
  EXPECT_NE(base, uniform_at(2, 2, 3));
  EXPECT_NE(base, uniform_at(1, 3, 3));
  EXPECT_NE(base, uniform_at(1, 2, 4));
  double sum = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const double value = uniform_at(7, i, 0);
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.015);  // five standard errors
}

}  // namespace
}  // namespace millrace
