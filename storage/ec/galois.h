#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace::storage::ec {

/// The field GF(2^8) of the erasure code: polynomials over bits modulo x^8 + x^4 + x^3 + x^2 + 1
/// (0x11d), as ISA-L and most storage systems have it. Plain tables: for matrices, for machines
/// without ISA-L's vector code, and as what the fast code is compared with.

std::uint8_t gf_multiply(std::uint8_t a, std::uint8_t b);
/// 1 / a; a is not 0 (CHECK).
std::uint8_t gf_inverse(std::uint8_t a);
/// out[i] += factor * in[i]; equal lengths (CHECK).
void gf_multiply_add(std::uint8_t factor, std::span<const std::byte> in, std::span<std::byte> out);

/// Row-major.
struct GfMatrix {
  int rows = 0;
  int columns = 0;
  std::vector<std::uint8_t> values;

  GfMatrix(int row_count, int column_count)
      : rows(row_count),
        columns(column_count),
        values(static_cast<std::size_t>(row_count) * static_cast<std::size_t>(column_count)) {}
  std::uint8_t& at(int row, int column) { return values[offset(row) + at_column(column)]; }
  std::uint8_t at(int row, int column) const { return values[offset(row) + at_column(column)]; }
  std::span<const std::uint8_t> row(int index) const {
    return std::span(values).subspan(offset(index), at_column(columns));
  }

 private:
  static std::size_t at_column(int column) { return static_cast<std::size_t>(column); }
  std::size_t offset(int row) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(columns);
  }
};

/// k + m rows of k: the identity, then Cauchy rows 1 / (i XOR j) for row i >= k and column j. Every
/// k of its rows are independent, which is what makes any k shards enough.
/// Source: Blömer et al., "An XOR-based erasure-resilient coding scheme", 1995; ISA-L's
/// gf_gen_cauchy1_matrix gives equal values.
GfMatrix cauchy_matrix(int data_shards, int parity_shards);

/// The inverse of a square matrix whose rows are independent (CHECK), by Gauss and Jordan.
GfMatrix invert(GfMatrix matrix);

}  // namespace millrace::storage::ec
