#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "api/tokenizer/huge_vector.h"

namespace millrace::api::tokenizer {

/// A set of byte strings, each with a number, that finds the longest one a text begins with. A
/// double array: a step reads one cell.
class ByteTrie {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  struct Entry {
    std::string_view bytes;
    std::uint32_t value = 0;  ///< not kNone
    std::uint32_t rank = 0;   ///< not kNone
  };
  struct Match {
    std::uint32_t value = kNone;
    std::size_t length = 0;
  };

  /// Sorts entries by their bytes.
  static void sort(std::span<Entry> entries);

  /// An empty set.
  ByteTrie() : cells_(257) {}
  /// entries: sorted, each string once and none of them empty.
  explicit ByteTrie(std::span<const Entry> entries);

  /// The longest string of a rank below `limit` that text begins with; kNone when there is none.
  Match longest_prefix(std::string_view text, std::uint32_t limit = kNone) const {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    Match best;
    std::uint32_t at = 0;
    std::uint32_t base = cells_[0].base;
    std::size_t i = 0;
    if (text.size() > 2 && !pairs_.empty()) [[likely]] {
      const Pair& pair = pairs_[std::size_t{byte(0)} << 8 | byte(1)];
      if (pair.rank < limit) [[likely]] {
        best = {pair.value, 2};
      } else {
        const Cell& first = cells_[base + byte(0)];
        if (first.rank < limit) best = {first.value, 1};
      }
      if ((pair.next_bytes & bit_of(byte(2))) == 0) return best;
      at = pair.cell;
      base = pair.base;
      i = 2;
    }
    for (; i < text.size(); ++i) {
      const std::uint32_t child = base + byte(i);
      const Cell& cell = cells_[child];
      if (cell.parent != at) break;
      at = child;
      base = cell.base;
      if (cell.rank < limit) best = {cell.value, i + 1};
    }
    return best;
  }

 private:
  /// The child of a cell by byte b is cell base + b, if that one's parent is the cell. Value and
  /// rank lie beside them: a search that had to look elsewhere for these would wait for memory once
  /// more.
  struct alignas(16) Cell {
    std::uint32_t base = 0;
    std::uint32_t parent = kNone;
    std::uint32_t value = kNone;
    std::uint32_t rank = kNone;  // of a string that is in the set
  };
  /// Where two bytes lead: a copy of their cell, so that a search begins with one read.
  struct alignas(32) Pair {
    std::uint64_t next_bytes = 0;  // bit_of() all bytes that lead on
    std::uint32_t cell = kNone;
    std::uint32_t base = 0;
    std::uint32_t value = kNone;
    std::uint32_t rank = kNone;
  };
  static std::uint64_t bit_of(std::uint32_t byte) { return std::uint64_t{1} << byte % 64; }
  void fill_pairs();

  HugeVector<Cell> cells_;  // the root first; 256 spare ones last, so that base + b is inside
  HugeVector<Pair>
      pairs_;  // by two bytes; only of a set with every single byte, as vocabularies are
};

}  // namespace millrace::api::tokenizer
