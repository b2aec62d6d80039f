#include "api/tokenizer/piece_scanner.h"

#include <absl/strings/str_replace.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "api/tokenizer/unicode_classes.h"
#include "common/str_cat.h"

namespace millrace::api::tokenizer {
namespace {

static_assert(std::endian::native == std::endian::little,
              "letters_end() counts bytes from the low end");

/// The third pattern. Files spell CR and LF as escapes or as themselves.
constexpr std::string_view kWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kHanRun = "[一-龥\u3040-ゟ゠-ヿ]+";

/// A character of valid UTF-8: its class and its bytes.
struct Char {
  CharClass kind;
  int bytes;
};

Char read_wide(const unsigned char* at) {
  const std::uint32_t lead = at[0];
  const auto next = [&](int i) { return static_cast<std::uint32_t>(at[i]) & 0x3Fu; };
  if (lead < 0xE0) return {class_of((lead & 0x1Fu) << 6 | next(1)), 2};
  if (lead < 0xF0) return {class_of((lead & 0x0Fu) << 12 | next(1) << 6 | next(2)), 3};
  return {class_of((lead & 0x07u) << 18 | next(1) << 12 | next(2) << 6 | next(3)), 4};
}

inline Char read(const char* at) {
  const auto byte = static_cast<unsigned char>(*at);
  // The first block of the table is ASCII.
  if (byte < 0x80) [[likely]]
    return {static_cast<CharClass>(kClassesOfBlocks[byte]), 1};
  return read_wide(reinterpret_cast<const unsigned char*>(at));
}

bool is_han(CharClass kind) {
  return kind == CharClass::kHan || kind == CharClass::kHanPunct || kind == CharClass::kHanOther;
}

inline bool is_ascii_letter(char c) {
  return static_cast<unsigned>((static_cast<unsigned char>(c) | 0x20) - 'a') < 26;
}

/// The end of a run of ASCII letters, eight bytes at a time.
const char* letters_end(const char* at, const char* end) {
  constexpr std::uint64_t kOnes = 0x0101010101010101;
  while (end - at >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    // The high bit of each byte: set where byte | 0x20 is in [a, z]. No sum carries over.
    const std::uint64_t low = (word | 0x20 * kOnes) & 0x7F * kOnes;
    const std::uint64_t from_a = low + (0x80 - 'a') * kOnes;
    const std::uint64_t past_z = low + (0x7F - 'z') * kOnes;
    const std::uint64_t others = ~(from_a & ~past_z & ~word) & 0x80 * kOnes;
    if (others != 0) return at + (std::countr_zero(others) >> 3);
    at += 8;
  }
  while (at < end && is_ascii_letter(*at)) ++at;
  return at;
}

/// The end of a run of one class.
template <CharClass kKind>
const char* run_end(const char* at, const char* end) {
  while (at < end) {
    const Char next = read(at);
    if (next.kind != kKind) break;
    at += next.bytes;
  }
  return at;
}

const char* word_end(const char* at, const char* end) {
  at = letters_end(at, end);
  if (at == end || static_cast<unsigned char>(*at) < 0x80) return at;
  return run_end<CharClass::kWord>(at, end);
}

/// [\p{P}\p{S}]+[\r\n]*, the first of them being before `at`.
const char* punctuation_end(const char* at, const char* end) {
  at = run_end<CharClass::kPunct>(at, end);
  while (at < end && (*at == '\r' || *at == '\n')) ++at;
  return at;
}

/// The piece that begins with white space.
const char* space_end(const char* first, const char* end) {
  const char* at = first;
  const char* last = first;             // the last character of the run
  const char* after_newline = nullptr;  // behind the last CR or LF of the run
  CharClass next = CharClass::kHan;     // what follows the run; text ends before Chinese
  while (at < end) {
    const Char c = read(at);
    if (c.kind != CharClass::kSpace && c.kind != CharClass::kNewline) {
      next = c.kind;
      break;
    }
    last = at;
    at += c.bytes;
    if (c.kind == CharClass::kNewline) after_newline = at;
  }
  if (last == first && after_newline == nullptr) {
    if (next == CharClass::kWord) return word_end(at, end);  // [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
    if (next == CharClass::kPunct && *first == ' ') return punctuation_end(at, end);
  }
  // \s*[\r\n]+ gives back what follows the last newline.
  if (after_newline != nullptr) return after_newline;
  // \s+(?!\S) gives back one character, unless text ends here or that would leave none: then \s+.
  const bool ends = is_han(next) || next == CharClass::kDigit;
  return ends || last == first ? at : last;
}

/// The piece that begins with a character of no class: a prefix of a word, or the gap between two
/// matches, which ends before a character that is the prefix of a word.
template <CharClass kOther, CharClass kWord>
const char* other_end(const char* at, const char* end) {
  const char* next = at + read(at).bytes;
  if (next < end && read(next).kind == kWord) return run_end<kWord>(next, end);
  while (next < end) {
    const Char c = read(next);
    if (c.kind != kOther) break;
    const char* after = next + c.bytes;
    if (after < end && read(after).kind == kWord) break;
    next = after;
  }
  return next;
}

/// Whether pieces end between two characters and the pieces of the text before would be the same if
/// the text ended there. A piece's begin depends on nothing before it, so that is all a cut needs.
///
/// Digits and Chinese are isolated first, so their edges end pieces and look like the end of text
/// to the rest. Of the alternatives at piece_end() none takes a word character and then anything
/// else, and none a newline and then anything but white space; and only E looks ahead, which never
/// sees either edge: it ends neither behind a word character nor behind a newline, which D takes.
bool is_cut(CharClass before, CharClass after) {
  if (before == after) return false;
  if (before == CharClass::kDigit || after == CharClass::kDigit) return true;
  if (is_han(before) || is_han(after)) return is_han(before) != is_han(after);
  if (before == CharClass::kWord) return true;
  return before == CharClass::kNewline && after != CharClass::kSpace;
}

bool equals(std::string_view pattern, std::string_view wanted) {
  return pattern == wanted ||
         pattern == absl::StrReplaceAll(to_absl(wanted), {{"\\r", "\r"}, {"\\n", "\n"}});
}

}  // namespace

std::optional<PieceScanner> PieceScanner::for_patterns(const std::vector<std::string>& patterns) {
  if (patterns.size() != 3 || patterns[1] != kHanRun || !equals(patterns[2], kWords)) return {};
  if (patterns[0] == "\\p{N}{1,3}") return PieceScanner(3);
  if (patterns[0] == "\\p{N}") return PieceScanner(1);
  return {};
}

// Alternatives of the third pattern in their order; the first that matches wins:
//
//     A  [ASCII punctuation][A-Za-z]+
//     B  [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
//     C   ?[\p{P}\p{S}]+[\r\n]*
//     D  \s*[\r\n]+
//     E  \s+(?!\S)
//     F  \s+
//
// The first character decides: a word character only begins B, punctuation A or C, a newline D;
// other white space B, C, D, E or F; anything else B or a gap.
const char* PieceScanner::piece_end(const char* at, const char* end) const {
  if (is_ascii_letter(*at)) return word_end(at + 1, end);
  if (*at == ' ' && end - at > 1 && is_ascii_letter(at[1])) return word_end(at + 2, end);
  const Char first = read(at);
  const char* next = at + first.bytes;
  switch (first.kind) {
    case CharClass::kWord:
      return word_end(next, end);
    case CharClass::kHan:
      return run_end<CharClass::kHan>(next, end);
    case CharClass::kHanPunct:
      return run_end<CharClass::kHanPunct>(next, end);
    case CharClass::kHanOther:
      return other_end<CharClass::kHanOther, CharClass::kHan>(at, end);
    case CharClass::kPunct:
      if (first.bytes == 1 && next < end && is_ascii_letter(*next)) return letters_end(next, end);
      return punctuation_end(next, end);
    case CharClass::kDigit:
      for (int i = 1; i < digits_ && next < end; ++i) {
        const Char c = read(next);
        if (c.kind != CharClass::kDigit) break;
        next += c.bytes;
      }
      return next;
    case CharClass::kSpace:
    case CharClass::kNewline:
      return space_end(at, end);
    case CharClass::kOther:
      return other_end<CharClass::kOther, CharClass::kWord>(at, end);
  }
  return end;
}

std::size_t PieceScanner::find_cut(std::string_view text, std::size_t from) {
  if (from == 0 || from >= text.size()) return text.size();
  const char* at = text.data() + from;
  const char* const end = text.data() + text.size();
  const auto is_inside = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  while (at < end && is_inside(*at)) ++at;
  const char* before = at - 1;
  while (is_inside(*before)) --before;
  for (CharClass kind = read(before).kind; at < end;) {
    const Char next = read(at);
    if (is_cut(kind, next.kind)) return static_cast<std::size_t>(at - text.data());
    kind = next.kind;
    at += next.bytes;
  }
  return text.size();
}

}  // namespace millrace::api::tokenizer
