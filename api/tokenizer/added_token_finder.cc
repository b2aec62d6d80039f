#include "api/tokenizer/added_token_finder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace millrace::api::tokenizer {
namespace {

/// Finds any of a few bytes in text, as fast as memchr() finds each: control tokens begin with one
/// or two different bytes, which most text has rarely.
class FirstBytes {
 public:
  FirstBytes(std::string_view text, std::string_view bytes) : text_(text), bytes_(bytes) {
    for (const char byte : bytes_) places_.push_back(text_.find(byte));
  }

  /// The first place from `at` on, or npos. `at` must not go back.
  std::size_t next(std::size_t at) {
    std::size_t first = std::string_view::npos;
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if (places_[i] < at) places_[i] = text_.find(bytes_[i], at);
      first = std::min(first, places_[i]);
    }
    return first;
  }

 private:
  std::string_view text_;
  std::string_view bytes_;
  std::vector<std::size_t> places_;  // of each byte, the next one
};

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::span<const AddedToken> tokens) {
  for (const bool normalized : {false, true}) {
    Pass& pass = passes_[normalized ? 1 : 0];
    std::vector<ByteTrie::Entry> spellings;
    for (const AddedToken& token : tokens) {
      if (token.normalized != normalized) continue;
      spellings.push_back({token.content, static_cast<std::uint32_t>(token.id)});
      const char first = token.content[0];
      if (pass.firsts.find(first) == std::string::npos) pass.firsts.push_back(first);
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
  FirstBytes candidates(text, pass.firsts);
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
