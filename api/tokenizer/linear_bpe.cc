#include "api/tokenizer/linear_bpe.h"

#include <utility>

#include "common/check.h"

namespace millrace::api::tokenizer {
namespace {

/// Positions of a piece that no sequence of tokens leads on from.
class FailedPositions {
 public:
  FailedPositions(std::vector<std::uint64_t>& words, std::size_t positions) : words_(words) {
    words_.assign(positions / 64 + 1, 0);
  }
  bool has(std::size_t position) const { return words_[position / 64] >> position % 64 & 1; }
  void add(std::size_t position) { words_[position / 64] |= std::uint64_t{1} << position % 64; }

 private:
  std::vector<std::uint64_t>& words_;
};

}  // namespace

std::unique_ptr<LinearBpe> LinearBpe::create(TokenizerFile& file) {
  const std::size_t count = kBytes + file.merges.size();
  if (count >> kNumberBits != 0) return nullptr;
  std::unique_ptr<LinearBpe> bpe(new LinearBpe(count));
  for (std::uint32_t byte = 0; byte < kBytes; ++byte) {
    const auto value = static_cast<unsigned char>(byte);
    bpe->tokens_[byte] = {
        .left = byte, .right = byte, .length = 1, .first_byte = value, .last_byte = value};
    bpe->ids_[byte] = file.byte_tokens[byte];
  }
  std::vector<std::uint32_t> number_of(static_cast<std::size_t>(file.token_bytes.id_bound()),
                                       kNone);
  if (!bpe->add_merges(file, number_of)) return nullptr;
  bpe->whole_ = std::move(file.byte_level_tokens);
  for (TokenId id = 0; id < file.token_bytes.id_bound(); ++id) {
    if (number_of[static_cast<std::size_t>(id)] < kNever) continue;
    const std::string_view bytes = file.token_bytes.of(id);
    if (bpe->whole_.find(bytes, bytes.size()) == id) bpe->whole_.remove(bytes);
  }
  bpe->build_trie(file.token_bytes);
  return bpe;
}

bool LinearBpe::add_merges(const TokenizerFile& file, std::vector<std::uint32_t>& number_of) {
  const auto number = [&](TokenId id) -> std::uint32_t& {
    return number_of[static_cast<std::size_t>(id)];
  };
  for (std::uint32_t byte = 0; byte < kBytes; ++byte) number(ids_[byte]) = byte;
  for (std::size_t rank = 0; rank < file.merges.size(); ++rank) {
    const Merge& merge = file.merges[rank];
    const std::uint32_t left = number(merge.left);
    const std::uint32_t right = number(merge.right);
    if (left == kNone || right == kNone || number(merge.result) != kNone) return false;
    // Where the text is the token's own, merging can go another way and never come by this merge.
    // Then it does so everywhere: whatever merges across the text's ends prevents the token, too.
    if (left == kNever || right == kNever ||
        tokens_[right].first_merge >= limit_behind(tokens_[left], tokens_[right].first_byte) ||
        !stay_apart(left, right)) {
      number(merge.result) = kNever;
      continue;
    }
    const auto token = static_cast<std::uint32_t>(kBytes + rank);
    number(merge.result) = token;
    const Token& first = tokens_[left];
    const Token& last = tokens_[right];
    const std::uint32_t length = std::uint32_t{first.length} + last.length;
    if (length > UINT16_MAX) return false;
    tokens_[token] = {.left = left,
                      .right = right,
                      .first_merge = left < kBytes ? token : first.first_merge,
                      .last_merge = right < kBytes ? token : last.last_merge,
                      .length = static_cast<std::uint16_t>(length),
                      .first_byte = first.first_byte,
                      .last_byte = last.last_byte};
    ids_[token] = merge.result;
    pairs_.add(std::uint64_t{left} << kNumberBits | right, token);
    if ((left | right) < kBytes) byte_pairs_[left * kBytes + right] = token;
    if (left > right) {
      tokens_[left].older_behind |= bit_of(right);
    } else {
      tokens_[right].older_before |= bit_of(left);
    }
  }
  return true;
}

void LinearBpe::build_trie(const TokenBytes& bytes) {
  HugeVector<ByteTrie::Entry> entries;
  entries.reserve(tokens_.size());
  for (std::uint32_t token = 0; token < tokens_.size(); ++token) {
    if (tokens_[token].length != 0)
      entries.push_back({bytes.of(ids_[token]), token, tokens_[token].first_merge});
  }
  ByteTrie::sort(entries);
  std::vector<ByteTrie::Entry> prefixes;  // of the entry before, the longest last, and it itself
  for (const ByteTrie::Entry& entry : entries) {
    while (!prefixes.empty() && !entry.bytes.starts_with(prefixes.back().bytes)) {
      prefixes.pop_back();
    }
    if (!prefixes.empty()) tokens_[entry.value].shorter = prefixes.back().value;
    prefixes.push_back(entry);
  }
  trie_ = ByteTrie(entries);
}

inline std::uint32_t LinearBpe::merged(std::uint32_t left, std::uint32_t right) const {
  const auto token =
      static_cast<std::uint32_t>(pairs_.find(std::uint64_t{left} << kNumberBits | right));
  return token == PackedTable::kNone ? kNone : token;
}

/// The last step of stay_apart(): the bytes at the border must not have merged before either was
/// taken. Returns what the first_merge of a token behind `left` must be below for that. Most tokens
/// that do not fit fail here, and the trie leaves them out before anything else of them is read.
inline std::uint32_t LinearBpe::limit_behind(const Token& left, unsigned char next_byte) const {
  const std::uint32_t bytes_merge = byte_pairs_[left.last_byte * kBytes + next_byte];
  return bytes_merge >= left.last_merge ? kNone : bytes_merge;
}

// Both tokens are undone step by step, the younger first. At each step their facing parts are what
// stood at the border until the part undone last was made; had they a merge of their own that is
// older, it would have come first. Of one merge at two places the left one comes first: a merge
// across the border is to the right of what becomes the left token, to the left of the other's.
//
// The younger token tells that nearly all pairs do not merge: it has few partners and is read here
// anyway. Asking the table of pairs each time took a third of the time of random letters.
bool LinearBpe::stay_apart(std::uint32_t left, std::uint32_t right) const {
  std::uint32_t made =
      kNone;  // across the border, a token made before this one would have been made
  while ((left | right) >= kBytes) {
    if (left > right) {
      const Token& younger = tokens_[left];
      if ((younger.older_behind & bit_of(right)) != 0 && merged(left, right) < made) return false;
      made = left;
      left = younger.right;
    } else {
      const Token& younger = tokens_[right];
      if ((younger.older_before & bit_of(left)) != 0 && merged(left, right) < made) return false;
      made = right + 1;
      right = younger.left;
    }
  }
  return true;  // limit_behind() knows
}

TokenId* LinearBpe::encode_parts(std::string_view piece, Scratch& scratch, TokenId* out) const {
  if (piece.empty()) return out;
  FailedPositions failed(scratch.failed, piece.size());
  std::vector<std::uint32_t>& taken = scratch.tokens;
  taken.clear();
  std::size_t at = 0;
  std::uint32_t limit = kNone;
  const auto set_limit = [&] {
    limit = taken.empty()
                ? kNone
                : limit_behind(tokens_[taken.back()], static_cast<unsigned char>(piece[at]));
  };
  auto [token, length] = trie_.longest_prefix(piece);
  const auto fits = [&](std::uint32_t next, std::size_t end) {
    return !failed.has(end) && (taken.empty() || stay_apart(taken.back(), next));
  };
  const auto shorten = [&, &token = token, &length = length] {
    do {
      token = tokens_[token].shorter;
    } while (token != kNone && tokens_[token].first_merge >= limit);
    length = token == kNone ? 0 : tokens_[token].length;
  };
  while (true) {
    while (token != kNone && !fits(token, at + length)) shorten();
    if (token != kNone) {
      taken.push_back(token);
      at += length;
      if (at == piece.size()) break;
      set_limit();
      const ByteTrie::Match match = trie_.longest_prefix(piece.substr(at), limit);
      token = match.value;
      length = match.length;
    } else {
      CHECK(!taken.empty(), "merging gives some tokens for every text");
      failed.add(at);
      token = taken.back();
      taken.pop_back();
      at -= tokens_[token].length;
      set_limit();
      shorten();  // where it ended has failed
    }
  }
  for (const std::uint32_t number : taken) *out++ = ids_[number];
  return out;
}

}  // namespace millrace::api::tokenizer
