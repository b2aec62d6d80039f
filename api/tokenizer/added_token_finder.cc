#include "api/tokenizer/added_token_finder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace millrace::api::tokenizer {
namespace {

/// Finds any of a few short strings in text, each about as fast as memchr() finds its first byte.
class Beginnings {
 public:
  Beginnings(std::string_view text, std::span<const std::string> beginnings)
      : text_(text), beginnings_(beginnings) {
    places_.reserve(beginnings.size());
    for (const std::string& beginning : beginnings) places_.push_back(text_.find(beginning));
  }

  /// The first place from `at` on, or npos. `at` must not go back.
  std::size_t next(std::size_t at) {
    std::size_t first = std::string_view::npos;
    for (std::size_t i = 0; i < beginnings_.size(); ++i) {
      if (places_[i] < at) places_[i] = text_.find(beginnings_[i], at);
      first = std::min(first, places_[i]);
    }
    return first;
  }

 private:
  std::string_view text_;
  std::span<const std::string> beginnings_;
  std::vector<std::size_t> places_;  // of each, the next one
};

/// Adds a spelling to the strings that each of the spellings begins with: their longest common
/// prefixes by first byte. The first byte alone, where it is that of Chinese punctuation, would be
/// found all over a Chinese text.
void add_beginning(std::string_view spelling, std::vector<std::string>& beginnings) {
  const auto known = std::find_if(beginnings.begin(), beginnings.end(), [&](const auto& beginning) {
    return beginning.front() == spelling.front();
  });
  if (known == beginnings.end()) {
    beginnings.emplace_back(spelling);
    return;
  }
  const auto [end, _] =
      std::mismatch(known->begin(), known->end(), spelling.begin(), spelling.end());
  known->erase(end, known->end());
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::span<const AddedToken> tokens) {
  for (const bool normalized : {false, true}) {
    Pass& pass = passes_[normalized ? 1 : 0];
    std::vector<ByteTrie::Entry> spellings;
    for (const AddedToken& token : tokens) {
      if (token.normalized != normalized) continue;
      spellings.push_back({token.content, static_cast<std::uint32_t>(token.id)});
      add_beginning(token.content, pass.beginnings);
    }
    ByteTrie::sort(spellings);
    pass.spellings = ByteTrie(spellings);
  }
}

std::vector<PromptPart> AddedTokenFinder::split(std::string_view text) const {
  std::vector<PromptPart> first;
  split_at(text, passes_[0], first);
  std::vector<PromptPart> parts;
  for (const PromptPart& part : first) {
    if (part.token >= 0) {
      parts.push_back(part);
    } else {
      split_at(part.text, passes_[1], parts);
    }
  }
  return parts;
}

void AddedTokenFinder::split_at(std::string_view text, const Pass& pass,
                                std::vector<PromptPart>& parts) {
  std::size_t from = 0;
  Beginnings candidates(text, pass.beginnings);
  for (std::size_t at = candidates.next(0); at < text.size();) {
    const ByteTrie::Match match = pass.spellings.longest_prefix(text.substr(at));
    if (match.length == 0) {
      at = candidates.next(at + 1);
      continue;
    }
    if (at > from) parts.push_back({text.substr(from, at - from)});
    parts.push_back({text.substr(at, match.length), static_cast<TokenId>(match.value)});
    from = at + match.length;
    at = candidates.next(from);
  }
  if (from < text.size()) parts.push_back({text.substr(from)});
}

}  // namespace millrace::api::tokenizer
