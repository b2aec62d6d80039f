#include "api/tokenizer/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/check.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::tokenizer {
namespace {

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct ContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using Code = std::unique_ptr<pcre2_code, CodeDeleter>;
using MatchData = std::unique_ptr<pcre2_match_data, MatchDeleter>;
using MatchContext = std::unique_ptr<pcre2_match_context, ContextDeleter>;

std::string message_of_error(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

// PCRE2's own \s also matches U+180E, which left White_Space in Unicode 6.3.
constexpr std::string_view kSpaces =
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"
    "\\x{205F}\\x{3000}";

/// Spells out \s and \S outside and \s inside of character classes.
absl::StatusOr<std::string> spell_out_spaces(const std::string& pattern) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 'Q') {  // a literal run: nothing in it is an escape
        const std::size_t end = std::min(pattern.find("\\E", i), pattern.size());
        out.append("\\Q").append(pattern, i + 1, end - i - 1);
        i = end - 1;
      } else if (next == 's') {
        out.append(in_class ? std::string(kSpaces) : str_cat("[", kSpaces, "]"));
      } else if (next == 'S' && !in_class) {
        out.append(str_cat("[^", kSpaces, "]"));
      } else if (next == 'S') {
        return absl::InvalidArgumentError(str_cat("pattern \"", pattern, "\", byte ", i,
                                                  ": \\S inside a class is not supported"));
      } else {
        out.push_back(c);
        out.push_back(next);
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out.push_back(c);
  }
  return out;
}

}  // namespace

struct PreTokenizer::Compiled {
  Code code;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::compile(
    const std::vector<std::string>& patterns) {
  std::unique_ptr<PreTokenizer> result(new PreTokenizer());
  for (const std::string& pattern : patterns) {
    ASSIGN_OR_RETURN(const std::string spelled, spell_out_spaces(pattern));
    int error = 0;
    PCRE2_SIZE offset = 0;
    Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                            nullptr));
    if (code == nullptr) {
      return absl::InvalidArgumentError(
          str_cat("pattern \"", pattern, "\", byte ", offset, ": ", message_of_error(error)));
    }
    // Only a speed-up: without it the interpreter gives the same matches.
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
    result->compiled_.push_back({std::move(code)});
  }
  return result;
}

namespace {

/// One pattern's scratch memory, for one call of cut().
struct Matcher {
  const pcre2_code* code;
  MatchData data;
  MatchContext context;
};

/// Isolates the matches inside one piece.
absl::Status cut_piece(const Matcher& matcher, std::string_view piece,
                       std::vector<std::string_view>& out) {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(piece.data());
  std::size_t kept_from = 0;
  std::size_t search_from = 0;
  while (search_from < piece.size()) {
    // Empty matches would isolate nothing, so they are not asked for.
    const int count =
        pcre2_match(matcher.code, subject, piece.size(), search_from,
                    PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, matcher.data.get(), matcher.context.get());
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) {
      return absl::InternalError(str_cat("pre-tokenizer: ", message_of_error(count)));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(matcher.data.get());
    if (range[0] > kept_from) out.push_back(piece.substr(kept_from, range[0] - kept_from));
    out.push_back(piece.substr(range[0], range[1] - range[0]));
    kept_from = search_from = range[1];
  }
  if (kept_from < piece.size()) out.push_back(piece.substr(kept_from));
  return absl::OkStatus();
}

}  // namespace

absl::Status PreTokenizer::cut(std::string_view text, std::vector<std::string_view>& pieces) const {
  if (text.empty()) return absl::OkStatus();
  std::vector<std::string_view> now{text};
  std::vector<std::string_view> next;
  for (const Compiled& compiled : compiled_) {
    Matcher matcher{compiled.code.get(),
                    MatchData(pcre2_match_data_create_from_pattern(compiled.code.get(), nullptr)),
                    MatchContext(pcre2_match_context_create(nullptr))};
    CHECK(matcher.data != nullptr && matcher.context != nullptr, "out of memory");
    // The default limit would refuse one run of some millions of characters.
    const std::uint64_t limit = std::min<std::uint64_t>(10'000'000 + 8 * text.size(), UINT32_MAX);
    pcre2_set_match_limit(matcher.context.get(), static_cast<std::uint32_t>(limit));
    next.clear();
    for (std::string_view piece : now) RETURN_IF_ERROR(cut_piece(matcher, piece, next));
    now.swap(next);
  }
  pieces.insert(pieces.end(), now.begin(), now.end());
  return absl::OkStatus();
}

}  // namespace millrace::api::tokenizer
