#include "storage/ec/galois.h"

#include <array>
#include <utility>

#include "common/check.h"

namespace millrace::storage::ec {
namespace {

struct Field {
  /// product[a][b], 64 KiB: a row of it is all that a multiplication by a constant needs.
  std::array<std::array<std::uint8_t, 256>, 256> product{};
  std::array<std::uint8_t, 256> inverse{};

  Field() {
    for (unsigned a = 0; a < 256; ++a) {
      for (unsigned b = 0; b < 256; ++b) {
        product[a][b] = by_definition(a, b);
        if (product[a][b] == 1) inverse[a] = static_cast<std::uint8_t>(b);
      }
    }
  }

  static std::uint8_t by_definition(unsigned a, unsigned b) {
    unsigned result = 0;
    for (; b != 0; b >>= 1) {
      if ((b & 1) != 0) result ^= a;
      a <<= 1;
      if ((a & 0x100) != 0) a ^= 0x11d;
    }
    return static_cast<std::uint8_t>(result);
  }
};

const Field& field() {
  static const Field instance;
  return instance;
}

void add_multiple(GfMatrix& matrix, int from, int to, std::uint8_t factor) {
  for (int column = 0; column < matrix.columns; ++column)
    matrix.at(to, column) ^= gf_multiply(factor, matrix.at(from, column));
}

void scale(GfMatrix& matrix, int row, std::uint8_t factor) {
  for (int column = 0; column < matrix.columns; ++column)
    matrix.at(row, column) = gf_multiply(factor, matrix.at(row, column));
}

void swap_rows(GfMatrix& matrix, int a, int b) {
  for (int column = 0; column < matrix.columns; ++column)
    std::swap(matrix.at(a, column), matrix.at(b, column));
}

}  // namespace

std::uint8_t gf_multiply(std::uint8_t a, std::uint8_t b) { return field().product[a][b]; }

std::uint8_t gf_inverse(std::uint8_t a) {
  CHECK(a != 0);
  return field().inverse[a];
}

void gf_multiply_add(std::uint8_t factor, std::span<const std::byte> in, std::span<std::byte> out) {
  CHECK(in.size() == out.size());
  const auto& row = field().product[factor];
  for (std::size_t i = 0; i < in.size(); ++i)
    out[i] ^= static_cast<std::byte>(row[static_cast<std::uint8_t>(in[i])]);
}

GfMatrix cauchy_matrix(int data_shards, int parity_shards) {
  CHECK(data_shards > 0 && parity_shards >= 0 && data_shards + parity_shards <= 256);
  GfMatrix matrix(data_shards + parity_shards, data_shards);
  for (int i = 0; i < data_shards; ++i) matrix.at(i, i) = 1;
  for (int i = data_shards; i < matrix.rows; ++i)
    for (int j = 0; j < data_shards; ++j)
      matrix.at(i, j) = gf_inverse(static_cast<std::uint8_t>(i ^ j));
  return matrix;
}

GfMatrix invert(GfMatrix matrix) {
  CHECK(matrix.rows == matrix.columns);
  GfMatrix inverse(matrix.rows, matrix.rows);
  for (int i = 0; i < matrix.rows; ++i) inverse.at(i, i) = 1;
  for (int column = 0; column < matrix.columns; ++column) {
    int pivot = column;
    while (pivot < matrix.rows && matrix.at(pivot, column) == 0) ++pivot;
    CHECK(pivot < matrix.rows, "dependent rows");
    if (pivot != column) {
      swap_rows(matrix, pivot, column);
      swap_rows(inverse, pivot, column);
    }
    const std::uint8_t factor = gf_inverse(matrix.at(column, column));
    scale(matrix, column, factor);
    scale(inverse, column, factor);
    for (int row = 0; row < matrix.rows; ++row) {
      const std::uint8_t value = matrix.at(row, column);
      if (row == column || value == 0) continue;
      add_multiple(matrix, column, row, value);
      add_multiple(inverse, column, row, value);
    }
  }
  return inverse;
}

}  // namespace millrace::storage::ec
