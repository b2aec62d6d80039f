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
    Match best;
    std::uint32_t at = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::uint32_t child = cells_[at].base + static_cast<unsigned char>(text[i]);
      const Cell& cell = cells_[child];
      if (cell.parent != at) break;
      at = child;
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
  HugeVector<Cell> cells_;  // the root first; 256 spare ones last, so that base + b is inside
};

}  // namespace millrace::api::tokenizer
