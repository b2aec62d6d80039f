#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "api/tokenizer/huge_vector.h"
#include "common/types.h"

namespace millrace::api::tokenizer {

/// The bytes of tokens by id, in one piece of memory.
class TokenBytes {
 public:
  /// Room for so many tokens and for so many bytes of all of them.
  void reserve(std::size_t tokens, std::size_t bytes) {
    places_.reserve(tokens);
    bytes_.reserve(bytes);
  }

  /// Sets the bytes of an id that has none.
  void set(TokenId id, std::string_view bytes) {
    const auto slot = static_cast<std::size_t>(id);
    if (slot >= places_.size()) places_.resize(slot + 1);
    places_[slot] = {static_cast<std::uint32_t>(bytes_.size()),
                     static_cast<std::uint32_t>(bytes.size())};
    bytes_.append(bytes);
  }

  /// Empty for an id without a token, also for one that is out of bounds.
  std::string_view of(TokenId id) const {
    if (id < 0 || id >= id_bound()) return {};
    const Place& place = places_[static_cast<std::size_t>(id)];
    return {bytes_.data() + place.offset, place.length};
  }

  TokenId id_bound() const { return static_cast<TokenId>(places_.size()); }
  std::size_t total_bytes() const { return bytes_.size(); }

 private:
  struct Place {
    std::uint32_t offset = 0;
    std::uint32_t length = 0;
  };
  std::string bytes_;
  HugeVector<Place> places_;
};

}  // namespace millrace::api::tokenizer
