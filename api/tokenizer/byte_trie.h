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

  /// The longest string that text begins with; kNone when none does.
  Match longest_prefix(std::string_view text) const {
    Match best;
    std::uint32_t best_cell = kNone;
    std::uint32_t cell = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::uint32_t child =
          (cells_[cell].base & kBaseMask) + static_cast<unsigned char>(text[i]);
      if (cells_[child].parent != cell) break;
      cell = child;
      if ((cells_[cell].base & kHasValue) != 0) {
        best_cell = cell;
        best.length = i + 1;
      }
    }
    if (best_cell != kNone) best.value = values_[best_cell];
    return best;
  }

 private:
  static constexpr std::uint32_t kHasValue = 1u << 31;
  static constexpr std::uint32_t kBaseMask = kHasValue - 1;

  /// The child of a cell by byte b is cell base + b, if that one's parent is the cell.
  struct Cell {
    std::uint32_t base = 0;  // and kHasValue
    std::uint32_t parent = kNone;
  };
  HugeVector<Cell>
      cells_;  // the root first; 256 spare ones last, so that base + b is always inside
  HugeVector<std::uint32_t> values_;  // of the cells with kHasValue; apart, as a search reads one
};

}  // namespace millrace::api::tokenizer
