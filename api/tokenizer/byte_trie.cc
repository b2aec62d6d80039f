#include "api/tokenizer/byte_trie.h"

#include <algorithm>
#include <bit>

namespace millrace::api::tokenizer {
namespace {

/// The free cells of a double array that is being filled.
class FreeCells {
 public:
  FreeCells() : used_(8, 0) { take(0); }  // the root

  /// A base such that base + b is free for each of the bytes.
  std::uint32_t find(const std::vector<unsigned char>& bytes) {
    for (std::size_t word = first_;; ++word) {
      grow(word);
      std::uint64_t fits = ~std::uint64_t{0};
      for (std::size_t i = 0; i < bytes.size() && fits != 0; ++i)
        fits &= free_from(64 * word + bytes[i]);
      if (fits == 0) continue;
      // Old cells that nothing fitted are given up: searches stay short, and the gaps cost little.
      if (word > first_ + kWindow) first_ = word - kWindow;
      return static_cast<std::uint32_t>(64 * word +
                                        static_cast<std::size_t>(std::countr_zero(fits)));
    }
  }

  void take(std::size_t cell) { used_[cell / 64] |= std::uint64_t{1} << cell % 64; }

 private:
  static constexpr std::size_t kWindow = 16;

  /// Bit i: whether cell + i is free.
  std::uint64_t free_from(std::size_t cell) const {
    const std::size_t shift = cell % 64;
    const std::uint64_t low = used_[cell / 64] >> shift;
    const std::uint64_t high = shift == 0 ? 0 : used_[cell / 64 + 1] << (64 - shift);
    return ~(low | high);
  }

  void grow(std::size_t word) {
    if (word + 6 > used_.size()) used_.resize(2 * word + 8, 0);
  }

  std::vector<std::uint64_t> used_;  // a bit for each cell, with spare ones behind the last search
  std::size_t first_ = 0;            // the word that searches begin with
};

/// The entries [begin, end), which share their first `depth` bytes, and the cell of these.
struct Subtree {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t depth = 0;
  std::uint32_t cell = 0;
};

/// The first eight bytes as a number that sorts as they do.
std::uint64_t sort_key(std::string_view bytes) {
  std::uint64_t key = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    key = key << 8 | (i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0u);
  }
  return key;
}

}  // namespace

void ByteTrie::sort(std::span<Entry> entries) {
  struct Keyed {
    std::uint64_t key;
    std::uint32_t index;
  };
  HugeVector<Keyed> keyed;
  keyed.reserve(entries.size());
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    keyed.push_back({sort_key(entries[i].bytes), i});
  }
  std::sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    return a.key != b.key ? a.key < b.key : entries[a.index].bytes < entries[b.index].bytes;
  });
  const HugeVector<Entry> unsorted(entries.begin(), entries.end());
  std::transform(keyed.begin(), keyed.end(), entries.begin(),
                 [&](const Keyed& k) { return unsorted[k.index]; });
}

ByteTrie::ByteTrie(std::span<const Entry> entries) : ByteTrie() {
  FreeCells free;
  std::size_t used = 1;
  std::vector<Subtree> subtrees{{.begin = 0, .end = entries.size()}};
  std::vector<unsigned char> bytes;  // that lead from a subtree to smaller ones
  std::vector<std::size_t> begins;   // of these
  while (!subtrees.empty()) {
    Subtree tree = subtrees.back();
    subtrees.pop_back();
    if (tree.begin < tree.end && entries[tree.begin].bytes.size() == tree.depth) {
      cells_[tree.cell].value = entries[tree.begin].value;
      cells_[tree.cell].rank = entries[tree.begin++].rank;
    }
    bytes.clear();
    begins.clear();
    for (std::size_t i = tree.begin; i < tree.end; ++i) {
      const auto byte = static_cast<unsigned char>(entries[i].bytes[tree.depth]);
      if (!bytes.empty() && bytes.back() == byte) continue;
      bytes.push_back(byte);
      begins.push_back(i);
    }
    if (bytes.empty()) continue;
    const std::uint32_t base = free.find(bytes);
    if (base + 257 > cells_.size()) {
      cells_.resize(std::max(std::size_t{base} + 257, 2 * cells_.size()));
    }
    cells_[tree.cell].base = base;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const std::uint32_t cell = base + bytes[i];
      free.take(cell);
      cells_[cell].parent = tree.cell;
      used = std::max<std::size_t>(used, cell + 1);
      subtrees.push_back(
          {begins[i], i + 1 < begins.size() ? begins[i + 1] : tree.end, tree.depth + 1, cell});
    }
  }
  cells_.resize(used + 256);
  cells_.shrink_to_fit();
  fill_pairs();
}

void ByteTrie::fill_pairs() {
  constexpr std::uint32_t kBytes = 256;
  const auto child = [&](std::uint32_t cell, std::uint32_t byte) -> std::uint32_t {
    const std::uint32_t place = cells_[cell].base + byte;
    return cells_[place].parent == cell ? place : kNone;
  };
  for (std::uint32_t byte = 0; byte < kBytes; ++byte) {
    const std::uint32_t cell = child(0, byte);
    if (cell == kNone || cells_[cell].value == kNone) return;
  }
  pairs_.resize(std::size_t{kBytes} * kBytes);
  for (std::uint32_t bytes = 0; bytes < kBytes * kBytes; ++bytes) {
    const std::uint32_t cell = child(child(0, bytes / kBytes), bytes % kBytes);
    if (cell == kNone) continue;
    Pair& pair = pairs_[bytes];
    pair = {.cell = cell,
            .base = cells_[cell].base,
            .value = cells_[cell].value,
            .rank = cells_[cell].rank};
    for (std::uint32_t byte = 0; byte < kBytes; ++byte) {
      if (child(cell, byte) != kNone) pair.next_bytes |= bit_of(byte);
    }
  }
}

}  // namespace millrace::api::tokenizer
