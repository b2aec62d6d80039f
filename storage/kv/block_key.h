#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

namespace millrace::storage {

/// Tokens of one block, the unit in which KV is named, stored and moved.
inline constexpr int kBlockTokens = 128;

/// The name of a block: the chain key of its last token (storage/kv/hash_chain.h). All 256 bits are
/// kept, so that no two contexts share a block by chance or by design of an attacker.
struct BlockKey {
  std::array<std::uint8_t, 32> bytes{};

  auto operator<=>(const BlockKey&) const = default;

  /// For logs and people, 64 lower-case digits. A key says nothing about the text without its salt.
  std::string hex() const;
  /// Eight bytes that are uniform already: for hash tables and placement.
  std::uint64_t prefix() const;
};

struct BlockKeyHash {
  std::size_t operator()(const BlockKey& key) const { return key.prefix(); }
};

}  // namespace millrace::storage
