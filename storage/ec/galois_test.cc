#include "storage/ec/galois.h"

#include <gtest/gtest.h>
#include <isa-l/erasure_code.h>

#include <algorithm>
#include <random>

namespace millrace::storage::ec {
namespace {

TEST(Galois, IsTheFieldOfIsal) {
  for (int a = 0; a < 256; ++a) {
    const auto left = static_cast<std::uint8_t>(a);
    for (int b = 0; b < 256; ++b) {
      const auto right = static_cast<std::uint8_t>(b);
      ASSERT_EQ(gf_multiply(left, right), gf_mul(left, right)) << a << " * " << b;
    }
    if (a != 0) {
      ASSERT_EQ(gf_inverse(left), gf_inv(left));
      ASSERT_EQ(gf_multiply(left, gf_inverse(left)), 1);
    }
  }
}

TEST(Galois, TheCodeIsIsalsCauchyMatrix) {
  for (int k = 1; k <= 20; ++k) {
    for (int m = 0; m <= 6; ++m) {
      std::vector<unsigned char> theirs(static_cast<std::size_t>((k + m) * k));
      gf_gen_cauchy1_matrix(theirs.data(), k + m, k);
      EXPECT_EQ(cauchy_matrix(k, m).values, theirs) << k << "+" << m;
    }
  }
}

TEST(Galois, AMatrixTimesItsInverseIsTheIdentity) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    // Any k rows of a Cauchy code are independent.
    const int k = 1 + static_cast<int>(random() % 16);
    const GfMatrix code = cauchy_matrix(k, 8);
    std::vector<int> rows(static_cast<std::size_t>(code.rows));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int>(i);
    std::shuffle(rows.begin(), rows.end(), random);
    GfMatrix matrix(k, k);
    for (int i = 0; i < k; ++i)
      for (int j = 0; j < k; ++j) matrix.at(i, j) = code.at(rows[static_cast<std::size_t>(i)], j);
    const GfMatrix inverse = invert(matrix);
    for (int i = 0; i < k; ++i) {
      for (int j = 0; j < k; ++j) {
        std::uint8_t sum = 0;
        for (int l = 0; l < k; ++l) sum ^= gf_multiply(matrix.at(i, l), inverse.at(l, j));
        ASSERT_EQ(sum, i == j ? 1 : 0);
      }
    }
  }
}

}  // namespace
}  // namespace millrace::storage::ec
