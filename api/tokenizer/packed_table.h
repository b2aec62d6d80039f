#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "api/tokenizer/huge_vector.h"

namespace millrace::api::tokenizer {

/// A hash table of numbers in single words: the key above the value. It grows to the number of
/// entries announced and no further. Lookups read one cache line nearly always.
class PackedTable {
 public:
  static constexpr std::uint64_t kNone = 0;

  /// Keys have at most 64 - value_bits bits, values value_bits; there are at most `entries`.
  PackedTable(unsigned value_bits, std::size_t entries)
      : value_bits_(value_bits),
        shift_(64 - static_cast<unsigned>(std::bit_width(2 * entries + 1))),
        slots_(std::size_t{1} << (64 - shift_), 0) {}

  /// The value of a key, or kNone.
  std::uint64_t find(std::uint64_t key) const {
    for (std::size_t slot = slot_of(key);; slot = next(slot)) {
      const std::uint64_t entry = slots_[slot];
      if (entry >> value_bits_ == key && entry != 0) return entry & ((1ull << value_bits_) - 1);
      if (entry == 0) return kNone;
    }
  }

  /// Adds a key that is not there. The value must not be kNone.
  void add(std::uint64_t key, std::uint64_t value) {
    std::size_t slot = slot_of(key);
    while (slots_[slot] != 0) slot = next(slot);
    slots_[slot] = key << value_bits_ | value;
  }

 private:
  std::size_t slot_of(std::uint64_t key) const { return key * 0x9E3779B97F4A7C15ull >> shift_; }
  std::size_t next(std::size_t slot) const { return (slot + 1) & (slots_.size() - 1); }

  unsigned value_bits_;
  unsigned shift_;
  HugeVector<std::uint64_t> slots_;
};

}  // namespace millrace::api::tokenizer
