#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "api/tokenizer/byte_trie.h"
#include "api/tokenizer/huge_vector.h"
#include "api/tokenizer/packed_table.h"
#include "api/tokenizer/token_bytes.h"
#include "api/tokenizer/token_index.h"
#include "api/tokenizer/tokenizer_file.h"
#include "common/types.h"

namespace millrace::api::tokenizer {

/// Byte-pair encoding without merging: the tokens of Bpe in time linear in the piece.
///
/// Tokens are taken from the left, the longest that the text goes on with first; one is kept if
/// merging its bytes and those of its left neighbour together would give just the two. If no token
/// that fits may follow, the neighbour was wrong and gives way to its next shorter prefix. A
/// position that failed is never tried again, which bounds the work.
/// Source: H. van Antwerpen and A. Neubeck, "So many tokens, so little time" (GitHub, 2024).
///
/// Immutable; any thread may encode, each with its own Scratch.
class LinearBpe {
 public:
  /// Takes over the tokens of a file. Null, and the file as it was, unless every merge joins tokens
  /// that are bytes or results of earlier merges, and no two merges have one result: then the place
  /// of a merge is the time at which its token can appear, which the method needs. Also null for
  /// tables of two million merges and for tokens of 64 KB.
  static std::unique_ptr<LinearBpe> create(TokenizerFile& file);

  /// Memory that one encoding leaves for the next.
  struct Scratch {
    std::vector<std::uint64_t> failed;
  };

  /// Writes the tokens of one piece, at most one for each of its bytes, and returns their end.
  /// `readable` bytes may be read from the piece's begin, at least its own.
  TokenId* encode(std::string_view piece, std::size_t readable, Scratch& scratch,
                  TokenId* out) const {
    if (piece.size() <= TokenIndex::kShortBytes) [[likely]] {
      const TokenId id = whole_.find_short(piece, readable);
      if (id >= 0) [[likely]] {
        *out = id;
        return out + 1;
      }
    }
    return encode_parts(piece, scratch, out);
  }

 private:
  // Tokens are numbered here in the order in which merging can make them: the 256 bytes, then the
  // merges.
  static constexpr std::uint32_t kNone = ByteTrie::kNone;
  static constexpr std::uint32_t kNever = kNone - 1;  // the number of a token that cannot appear
  static constexpr std::uint32_t kBytes = 256;
  static constexpr unsigned kNumberBits = 21;
  static constexpr std::uint16_t kNoEdge = 63 << 6 | 63;
  /// A cache line: nearly every check of two tokens reads no more than theirs.
  ///
  /// A token's edge on a side is the tokens that stood there while it was made: itself, its part on
  /// that side, the part of this, and so on down to the byte. All but the byte have one first (or
  /// last) merge, by which edge_of() names them.
  struct alignas(64) Token {
    std::uint32_t left = 0;  // of a byte: itself, twice
    std::uint32_t right = 0;
    std::uint32_t shorter = kNone;  // the longest token that is a proper prefix
    // The first merge that took the first byte (of a byte: kNever), and the last byte (kNone).
    std::uint32_t first_merge = kNever;
    std::uint32_t last_merge = kNone;
    std::uint16_t length = 0;  // 0: cannot appear
    unsigned char first_byte = 0;
    unsigned char last_byte = 0;
    // A bit for each older token that a merge puts behind this one, or before it; see bit_of().
    std::uint32_t older_behind = 0;
    std::uint32_t older_before = 0;
    // The same of all tokens at the right (left) edge, of merges older than the edge's next one:
    // what is not there cannot have merged across the border. Bytes by bit_of_byte(), other
    // tokens by the bits of their edge that is the border.
    std::uint32_t bytes_behind = 0;
    std::uint32_t bytes_before = 0;
    std::uint64_t edges_behind = 0;
    std::uint64_t edges_before = 0;
    std::uint16_t left_edge = kNoEdge;
    std::uint16_t right_edge = kNoEdge;
    TokenId id = -1;
  };
  static_assert(sizeof(Token) == 64);

  explicit LinearBpe(std::size_t tokens)
      : tokens_(tokens), pairs_(kNumberBits, tokens), byte_pairs_(kBytes * kBytes, kNone) {}
  bool add_merges(const TokenizerFile& file, std::vector<std::uint32_t>& number_of);
  void note_partners(std::uint32_t left, std::uint32_t right);
  void build_trie(const TokenBytes& bytes);
  TokenId* encode_parts(std::string_view piece, Scratch& scratch, TokenId* out) const;

  static std::uint32_t hash_of(std::uint32_t token) { return token * 0x9E3779B9u; }
  static std::uint32_t bit_of(std::uint32_t token) {
    return std::uint32_t{1} << (hash_of(token) >> 27);
  }
  static std::uint32_t bit_of_byte(std::uint32_t byte) { return std::uint32_t{1} << byte % 32; }
  /// Two places in 64 bits. The last one is kNoEdge's, which no set of edges has.
  static std::uint16_t edge_of(std::uint32_t merge) {
    const std::uint32_t hash = hash_of(merge);
    return static_cast<std::uint16_t>((hash >> 16) % 63 << 6 | (hash >> 4 & 0xfff) % 63);
  }
  static std::uint64_t bits_of_edge(std::uint16_t edge) {
    return std::uint64_t{1} << (edge >> 6) | std::uint64_t{1} << (edge & 63);
  }
  std::uint32_t merged(std::uint32_t left, std::uint32_t right) const;
  std::uint32_t limit_behind(std::uint32_t left, unsigned char next_byte) const;
  bool stay_apart(std::uint32_t left, std::uint32_t right) const;
  bool merge_somewhere(std::uint32_t left, std::uint32_t right) const;

  HugeVector<Token> tokens_;
  PackedTable pairs_;                      // two tokens -> the token they merge into
  std::vector<std::uint32_t> byte_pairs_;  // the same for bytes, which nearly every check ends with
  ByteTrie trie_;
  TokenIndex whole_;
};

}  // namespace millrace::api::tokenizer
