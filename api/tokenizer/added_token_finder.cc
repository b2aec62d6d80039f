#include "api/tokenizer/added_token_finder.h"

#include <cstddef>
#include <cstdint>

namespace millrace::api::tokenizer {

AddedTokenFinder::AddedTokenFinder(std::span<const AddedToken> tokens) {
  for (const bool normalized : {false, true}) {
    Pass& pass = passes_[normalized ? 1 : 0];
    std::vector<ByteTrie::Entry> spellings;
    for (const AddedToken& token : tokens) {
      if (token.normalized != normalized) continue;
      spellings.push_back({token.content, static_cast<std::uint32_t>(token.id)});
      pass.is_first[static_cast<unsigned char>(token.content[0])] = true;
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
  std::size_t at = 0;
  while (true) {
    while (at < text.size() && !pass.is_first[static_cast<unsigned char>(text[at])]) ++at;
    if (at == text.size()) break;
    const ByteTrie::Match match = pass.spellings.longest_prefix(text.substr(at));
    if (match.length == 0) {
      ++at;
      continue;
    }
    if (at > from) parts.push_back({text.substr(from, at - from)});
    parts.push_back({text.substr(at, match.length), static_cast<TokenId>(match.value)});
    at += match.length;
    from = at;
  }
  if (from < text.size()) parts.push_back({text.substr(from)});
}

}  // namespace millrace::api::tokenizer
