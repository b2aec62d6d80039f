#include "api/tokenizer/bpe.h"

#include <functional>
#include <queue>
#include <utility>

namespace millrace::api::tokenizer {
namespace {

std::uint64_t pair_key(TokenId left, TokenId right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

/// A token of the piece, in a doubly linked list over places. A merged-away place has token -1.
struct Symbol {
  TokenId token = -1;
  std::int32_t previous = -1;
  std::int32_t next = -1;
};

/// A pair that may merge. Stale once either symbol has changed since.
struct Candidate {
  std::int32_t rank = 0;
  std::int32_t place = 0;
  TokenId left = 0;
  TokenId right = 0;
  TokenId result = 0;

  /// Order of a max-heap: the lowest rank, then the leftmost place, is on top.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : place > other.place;
  }
};

}  // namespace

Bpe::Bpe(const std::array<TokenId, 256>& byte_tokens, std::span<const Merge> merges)
    : byte_tokens_(byte_tokens) {
  rules_.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    // A pair listed twice keeps its later rank, as a table filled in order does.
    rules_[pair_key(merge.left, merge.right)] = {static_cast<std::int32_t>(rank), merge.result};
  }
}

const Bpe::Rule* Bpe::find(TokenId left, TokenId right) const {
  const auto it = rules_.find(pair_key(left, right));
  return it == rules_.end() ? nullptr : &it->second;
}

void Bpe::encode(std::string_view piece, std::vector<TokenId>& ids) const {
  const auto count = static_cast<std::int32_t>(piece.size());
  if (count == 0) return;
  std::vector<Symbol> symbols(piece.size());
  for (std::int32_t i = 0; i < count; ++i) {
    symbols[static_cast<std::size_t>(i)] = {
        byte_tokens_[static_cast<unsigned char>(piece[static_cast<std::size_t>(i)])], i - 1,
        i + 1 < count ? i + 1 : -1};
  }
  const auto at = [&](std::int32_t place) -> Symbol& {
    return symbols[static_cast<std::size_t>(place)];
  };
  std::vector<Candidate> room;
  room.reserve(piece.size());
  std::priority_queue<Candidate> candidates(std::less<Candidate>(), std::move(room));
  const auto consider = [&](std::int32_t place) {
    if (place < 0 || at(place).next < 0) return;
    const TokenId left = at(place).token;
    const TokenId right = at(at(place).next).token;
    if (const Rule* rule = find(left, right)) {
      candidates.push({rule->rank, place, left, right, rule->result});
    }
  };
  for (std::int32_t i = 0; i < count; ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = at(best.place);
    if (left.token != best.left || left.next < 0 || at(left.next).token != best.right) continue;
    Symbol& right = at(left.next);
    left.token = best.result;
    right.token = -1;
    left.next = right.next;
    if (left.next >= 0) at(left.next).previous = best.place;
    consider(left.previous);
    consider(best.place);
  }
  for (std::int32_t place = 0; place >= 0; place = at(place).next) ids.push_back(at(place).token);
}

}  // namespace millrace::api::tokenizer
