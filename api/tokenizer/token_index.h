#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "api/tokenizer/huge_vector.h"
#include "common/types.h"

namespace millrace::api::tokenizer {

/// Tokens by their bytes. Those of at most 16 bytes, which most pieces of ordinary text are, lie in
/// tables that hold the bytes themselves, so that one read finds them.
class TokenIndex {
 public:
  static constexpr std::size_t kShortBytes = 16;

  /// How many tokens there will be by their length.
  struct Counts {
    std::size_t up_to_8 = 0;
    std::size_t up_to_16 = 0;  ///< and more than 8
  };

  TokenIndex() : TokenIndex(Counts()) {}
  explicit TokenIndex(const Counts& counts) : small_(counts.up_to_8), medium_(counts.up_to_16) {}

  /// False when the bytes, at least one, are there already.
  bool add(std::string_view bytes, TokenId id);
  void remove(std::string_view bytes);

  /// The token of bytes, or -1. `readable` is how many may be read from their begin, at least
  /// their own; with 16 the search is faster.
  TokenId find(std::string_view bytes, std::size_t readable) const;

  /// The same for 1 to 16 bytes.
  TokenId find_short(std::string_view bytes, std::size_t readable) const {
    const Key key = key_of(bytes, readable);
    if (bytes.size() <= 8) [[likely]]
      return small_.find({key.low, length_of(bytes)});
    return medium_.find({key.low, key.high, length_of(bytes)});
  }

  /// Brings what find() will read into the cache.
  void prefetch(std::string_view bytes, std::size_t readable) const;

 private:
  struct Key {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
  };
  struct Small {
    std::uint64_t low = 0;
    std::uint32_t length = 0;  // 0: a free slot
    TokenId id = -1;           // -1: removed

    bool has_key_of(const Small& other) const { return low == other.low && length == other.length; }
    std::uint64_t hash() const { return mix((low ^ length) * 0x9E3779B97F4A7C15ull); }
  };
  struct Medium {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    std::uint32_t length = 0;
    TokenId id = -1;

    bool has_key_of(const Medium& other) const {
      return low == other.low && high == other.high && length == other.length;
    }
    std::uint64_t hash() const {
      return mix((low ^ length) * 0x9E3779B97F4A7C15ull ^
                 std::rotl(high * 0xC2B2AE3D27D4EB4Full, 31));
    }
  };

  /// Open addressing, three fifths full at most.
  template <typename Slot>
  class Table {
   public:
    explicit Table(std::size_t entries) : slots_(entries * 5 / 3 + 2) {}

    TokenId find(const Slot& key) const {
      for (std::size_t i = first(key);; i = next(i)) {
        if (slots_[i].has_key_of(key)) return slots_[i].id;
        if (slots_[i].length == 0) return -1;
      }
    }
    /// The slot of a key, or the free one where it would be.
    Slot& at(const Slot& key) {
      std::size_t i = first(key);
      while (slots_[i].length != 0 && !slots_[i].has_key_of(key)) i = next(i);
      return slots_[i];
    }
    void prefetch(const Slot& key) const { __builtin_prefetch(&slots_[first(key)]); }

   private:
    std::size_t first(const Slot& key) const { return (key.hash() >> 32) * slots_.size() >> 32; }
    std::size_t next(std::size_t i) const { return i + 1 == slots_.size() ? 0 : i + 1; }

    HugeVector<Slot> slots_;
  };

  static std::uint64_t mix(std::uint64_t hash) {
    return (hash ^ hash >> 32) * 0xD6E8FEB86659FD93ull;
  }
  static std::uint32_t length_of(std::string_view bytes) {
    return static_cast<std::uint32_t>(bytes.size());
  }

  /// Ones in the first n bytes of eight.
  static std::uint64_t mask(std::size_t n) {
    return n >= 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * n) - 1;
  }

  static Key key_of(std::string_view bytes, std::size_t readable) {
    std::array<char, kShortBytes> copy;
    const char* from = bytes.data();
    if (readable < kShortBytes) [[unlikely]] {
      copy.fill(0);
      std::memcpy(copy.data(), from, bytes.size());
      from = copy.data();
    }
    Key key;
    std::memcpy(&key.low, from, 8);
    std::memcpy(&key.high, from + 8, 8);
    key.low &= mask(bytes.size());
    key.high &= bytes.size() > 8 ? mask(bytes.size() - 8) : 0;
    return key;
  }

  Table<Small> small_;
  Table<Medium> medium_;
  absl::flat_hash_map<std::string, TokenId> long_tokens_;
};

}  // namespace millrace::api::tokenizer
