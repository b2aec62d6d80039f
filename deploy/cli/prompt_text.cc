#include "deploy/cli/prompt_text.h"

#include <array>
#include <string_view>
#include <utility>

#include "common/annotate.h"
#include "common/philox.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::deploy::cli {
namespace {

constexpr std::array<std::string_view, 96> kWords = {
    "the",      "river",  "a",      "mill",    "turns",  "slowly",  "under",   "old",
    "bridge",   "and",    "water",  "carries", "leaves", "past",    "garden",  "where",
    "children", "play",   "every",  "morning", "before", "school",  "begins",  "again",
    "she",      "wrote",  "letter", "about",   "small",  "town",    "near",    "sea",
    "he",       "found",  "map",    "in",      "drawer", "of",      "table",   "that",
    "nobody",   "used",   "since",  "winter",  "came",   "with",    "snow",    "over",
    "hills",    "they",   "built",  "bread",   "from",   "flour",   "sold",    "it",
    "at",       "market", "for",    "coins",   "seven",  "twelve",  "hundred", "green",
    "red",      "boats",  "wait",   "while",   "wind",   "changes", "to",      "north",
    "question", "answer", "number", "model",   "reads",  "long",    "story",   "again",
    "after",    "rain",   "we",     "walk",    "home",   "through", "quiet",   "streets",
    "light",    "window", "music",  "plays",   "until",  "night",   "is",      "done"};
constexpr std::uint32_t kPurpose = 0x62656e63;  // apart from every other use of the generator

}  // namespace

std::string made_up_text(std::uint64_t seed, int words) {
  std::string text;
  int left_in_sentence = 0;
  for (int i = 0; i < words; ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    const double choice = uniform_at(seed, 2 * at, kPurpose);
    std::string word(kWords[static_cast<std::size_t>(choice * kWords.size())]);
    if (left_in_sentence == 0) {
      left_in_sentence = 4 + static_cast<int>(uniform_at(seed, 2 * at + 1, kPurpose) * 9);
      word[0] = static_cast<char>(word[0] - 'a' + 'A');
    }
    text += word;
    text += --left_in_sentence == 0 ? ". " : " ";
  }
  return text;
}

absl::StatusOr<PromptText> PromptText::open(const std::string& model_dir) {
  absl::StatusOr<std::unique_ptr<api::tokenizer::Tokenizer>> tokenizer =
      api::tokenizer::Tokenizer::open(str_cat(model_dir, "/tokenizer.json"));
  if (!tokenizer.ok()) return annotate(tokenizer.status(), "the model's tokenizer");
  return PromptText(std::shared_ptr<const api::tokenizer::Tokenizer>(*std::move(tokenizer)));
}

absl::StatusOr<std::vector<TokenId>> PromptText::token_ids(std::uint64_t seed, int count) const {
  // A word and its space are at least one token, so that many words are always enough.
  ASSIGN_OR_RETURN(std::vector<TokenId> ids,
                   tokenizer_->encode_text(made_up_text(seed, count + 1)));
  if (ids.size() < static_cast<std::size_t>(count)) {
    return absl::InternalError("the tokenizer joins words; no text of that length was made");
  }
  ids.resize(static_cast<std::size_t>(count));
  return ids;
}

}  // namespace millrace::deploy::cli
