#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "api/tokenizer/huge_vector.h"

namespace millrace::api::tokenizer {

/// A hash table of numbers in single words: the key above the value. It has room for the entries
/// announced and no more. Made for keys that mostly are not there: eight bits a slot tell so from a
/// table small enough for the second-level cache.
class PackedTable {
 public:
  static constexpr std::uint64_t kNone = 0;

  /// Keys have at most 64 - value_bits bits, values value_bits; there are at most `entries`.
  PackedTable(unsigned value_bits, std::size_t entries)
      : value_bits_(value_bits),
        shift_(64 - static_cast<unsigned>(std::bit_width(2 * entries + 1))),
        slots_(std::size_t{1} << (64 - shift_), 0),
        present_(slots_.size() * kBitsPerSlot / 64, 0) {}

  /// The value of a key, or kNone.
  std::uint64_t find(std::uint64_t key) const {
    const std::uint64_t hash = hash_of(key);
    const std::uint64_t bit = hash >> (shift_ - kBits);
    if ((present_[bit / 64] >> bit % 64 & 1) == 0) [[likely]]
      return kNone;
    for (std::size_t slot = hash >> shift_;; slot = next(slot)) {
      const std::uint64_t entry = slots_[slot];
      if (entry == 0) return kNone;
      if (entry >> value_bits_ == key) return entry & ((1ull << value_bits_) - 1);
    }
  }

  /// Adds a key that is not there. The value must not be kNone.
  void add(std::uint64_t key, std::uint64_t value) {
    const std::uint64_t hash = hash_of(key);
    const std::uint64_t bit = hash >> (shift_ - kBits);
    present_[bit / 64] |= std::uint64_t{1} << bit % 64;
    std::size_t slot = hash >> shift_;
    while (slots_[slot] != 0) slot = next(slot);
    slots_[slot] = key << value_bits_ | value;
  }

 private:
  static constexpr unsigned kBits = 3;
  static constexpr std::size_t kBitsPerSlot = 1 << kBits;

  static std::uint64_t hash_of(std::uint64_t key) { return key * 0x9E3779B97F4A7C15ull; }
  std::size_t next(std::size_t slot) const { return (slot + 1) & (slots_.size() - 1); }

  unsigned value_bits_;
  unsigned shift_;
  HugeVector<std::uint64_t> slots_;
  std::vector<std::uint64_t> present_;  // by hash: whether any key has it
};

}  // namespace millrace::api::tokenizer
