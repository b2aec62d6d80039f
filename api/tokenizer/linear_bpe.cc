#include "api/tokenizer/linear_bpe.h"

#include <algorithm>
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
    bpe->tokens_[byte] = {.left = byte,
                          .right = byte,
                          .length = 1,
                          .first_byte = value,
                          .last_byte = value,
                          .id = file.byte_tokens[byte]};
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
  for (std::uint32_t byte = 0; byte < kBytes; ++byte) number(tokens_[byte].id) = byte;
  for (std::size_t rank = 0; rank < file.merges.size(); ++rank) {
    const Merge& merge = file.merges[rank];
    const std::uint32_t left = number(merge.left);
    const std::uint32_t right = number(merge.right);
    if (left == kNone || right == kNone || number(merge.result) != kNone) return false;
    // Where the text is the token's own, merging can go another way and never come by this merge.
    // Then it does so everywhere: whatever merges across the text's ends prevents the token, too.
    if (left == kNever || right == kNever ||
        tokens_[right].first_merge >= limit_behind(left, tokens_[right].first_byte) ||
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
    note_partners(left, right);
    const std::uint32_t first_merge = left < kBytes ? token : first.first_merge;
    const std::uint32_t last_merge = right < kBytes ? token : last.last_merge;
    // Its edges have its parts' partners so far: a part that has merged into this token is no
    // longer there for what merges later.
    tokens_[token] = {.left = left,
                      .right = right,
                      .first_merge = first_merge,
                      .last_merge = last_merge,
                      .length = static_cast<std::uint16_t>(length),
                      .first_byte = first.first_byte,
                      .last_byte = last.last_byte,
                      .bytes_behind = last.bytes_behind,
                      .bytes_before = first.bytes_before,
                      .edges_behind = last.edges_behind,
                      .edges_before = first.edges_before,
                      .left_edge = edge_of(first_merge),
                      .right_edge = edge_of(last_merge),
                      .id = merge.result};
    pairs_.add(std::uint64_t{left} << kNumberBits | right, token);
    if ((left | right) < kBytes) byte_pairs_[left * kBytes + right] = token;
  }
  return true;
}

/// The younger of two tokens that merge knows the other. Bytes that merge do not: limit_behind()
/// looks for these.
void LinearBpe::note_partners(std::uint32_t left, std::uint32_t right) {
  Token& first = tokens_[left];
  Token& last = tokens_[right];
  if ((left | right) < kBytes) return;
  if (left > right) {
    first.older_behind |= bit_of(right);
    if (right < kBytes) {
      first.bytes_behind |= bit_of_byte(right);
    } else {
      first.edges_behind |= bits_of_edge(last.left_edge);
    }
  } else {
    last.older_before |= bit_of(left);
    if (left < kBytes) {
      last.bytes_before |= bit_of_byte(left);
    } else {
      last.edges_before |= bits_of_edge(first.right_edge);
    }
  }
}

void LinearBpe::build_trie(const TokenBytes& bytes) {
  HugeVector<ByteTrie::Entry> entries;
  entries.reserve(tokens_.size());
  for (std::uint32_t token = 0; token < tokens_.size(); ++token) {
    if (tokens_[token].length != 0)
      entries.push_back({bytes.of(tokens_[token].id), token, tokens_[token].first_merge});
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

/// What the first_merge of a token behind `left` must be below: merges that take the token's first
/// byte as it is must not come before it is taken. Most tokens that do not fit fail here, and the
/// trie leaves them out before anything else of them is read.
inline std::uint32_t LinearBpe::limit_behind(std::uint32_t left, unsigned char next_byte) const {
  const Token& token = tokens_[left];
  const std::uint32_t bytes_merge = byte_pairs_[token.last_byte * kBytes + next_byte];
  // Without a branch, which random letters would mispredict every other time.
  std::uint32_t limit = bytes_merge | -std::uint32_t{bytes_merge >= token.last_merge};
  if ((token.bytes_behind & bit_of_byte(next_byte)) != 0) [[unlikely]] {
    std::uint32_t made = kNone;
    for (std::uint32_t part = left; part >= kBytes; part = tokens_[part].right) {
      const std::uint32_t merge = merged(part, next_byte);
      if (merge < made) limit = std::min(limit, merge);
      made = part;
    }
  }
  return limit;
}

/// Whether merging keeps two tokens apart whose limit_behind() is kept. What their edges know of
/// each other answers nearly always.
inline bool LinearBpe::stay_apart(std::uint32_t left, std::uint32_t right) const {
  const Token& first = tokens_[left];
  const Token& last = tokens_[right];
  // Summed, not "or": one branch on all three, which is nearly always foreseen.
  const int may_merge = int{(~first.edges_behind & bits_of_edge(last.left_edge)) == 0} +
                        int{(~last.edges_before & bits_of_edge(first.right_edge)) == 0} +
                        int{(last.bytes_before & bit_of_byte(first.last_byte)) != 0};
  return may_merge == 0 || !merge_somewhere(left, right);
}

// Both tokens are undone step by step, the younger first. At each step their facing parts are what
// stood at the border until the part undone last was made; had they a merge of their own that is
// older, it would have come first. Of one merge at two places the left one comes first: a merge
// across the border is to the right of what becomes the left token, to the left of the other's.
//
// The younger token tells that nearly all pairs do not merge: it has few partners and is read here
// anyway. Asking the table of pairs each time took a third of the time of random letters.
bool LinearBpe::merge_somewhere(std::uint32_t left, std::uint32_t right) const {
  std::uint32_t made =
      kNone;  // across the border, a token made before this one would have been made
  while ((left | right) >= kBytes) {
    if (left > right) {
      const Token& younger = tokens_[left];
      if ((younger.older_behind & bit_of(right)) != 0 && merged(left, right) < made) return true;
      made = left;
      left = younger.right;
    } else {
      const Token& younger = tokens_[right];
      if ((younger.older_before & bit_of(left)) != 0 && merged(left, right) < made) return true;
      made = right + 1;
      right = younger.left;
    }
  }
  return false;  // limit_behind() knows
}

TokenId* LinearBpe::encode_parts(std::string_view piece, Scratch& scratch, TokenId* out) const {
  if (piece.empty()) return out;
  FailedPositions failed(scratch.failed, piece.size());
  TokenId* end = out;      // of the tokens taken, which are numbers until all are
  std::uint32_t last = 0;  // of these
  std::size_t at = 0;
  std::uint32_t limit = kNone;
  ByteTrie::Match next = trie_.longest_prefix(piece);
  const auto set_limit = [&] {
    limit = end == out ? kNone : limit_behind(last, static_cast<unsigned char>(piece[at]));
  };
  const auto fits = [&] {
    return !failed.has(at + next.length) && (end == out || stay_apart(last, next.value));
  };
  const auto shorten = [&] {
    do {
      next.value = tokens_[next.value].shorter;
    } while (next.value != kNone && tokens_[next.value].first_merge >= limit);
    next.length = next.value == kNone ? 0 : tokens_[next.value].length;
  };
  while (true) {
    while (next.value != kNone && !fits()) shorten();
    if (next.value != kNone) {
      last = next.value;
      *end++ = static_cast<TokenId>(last);
      at += next.length;
      if (at == piece.size()) break;
      set_limit();
      next = trie_.longest_prefix(piece.substr(at), limit);
    } else {
      CHECK(end != out, "merging gives some tokens for every text");
      failed.add(at);
      next.value = last;
      --end;
      if (end != out) last = static_cast<std::uint32_t>(end[-1]);
      at -= tokens_[next.value].length;
      set_limit();
      shorten();  // where it ended has failed
    }
  }
  for (; out != end; ++out) *out = tokens_[static_cast<std::size_t>(*out)].id;
  return out;
}

}  // namespace millrace::api::tokenizer
