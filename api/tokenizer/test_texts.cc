#include "api/tokenizer/test_texts.h"

#include <iterator>

namespace millrace::api::tokenizer::test {

void append_code_point(std::uint32_t c, std::string& text) {
  const auto put = [&](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)),
        put(0x80 | (c & 0x3F));
  }
}

std::vector<std::uint32_t> random_code_points(std::mt19937& random) {
  // Letters, digits, spaces, newlines, punctuation, marks, ideographs, kana, controls, formats.
  static constexpr std::uint32_t kChosen[] = {
      'a',    'b',     'Z',     'a',     '1',     '7',     ' ',    ' ',    ' ',    '\n',
      '\r',   '\t',    '!',     '.',     '\'',    '_',     '<',    0,      1,      0x7F,
      0x85,   0xA0,    0xBD,    0xAB,    0xE9,    0x301,   0x661,  0x2003, 0x2028, 0x2160,
      0x200B, 0x200D,  0x180E,  0x3000,  0x3001,  0x3005,  0x4E00, 0x9FA5, 0x9FA6, 0x3042,
      0x30A2, 0x30FB,  0x3099,  0x3040,  0x309B,  0xFEFF,  0xFF08, 0xFF11, 0xAC00, 0xE000,
      0x378,  0x1F600, 0x1D7CE, 0x20000, 0xE0101, 0x10FFFF};
  static constexpr std::uint32_t kRanges[] = {0x80, 0x300, 0x3100, 0xA000, 0x11000, 0x110000};
  std::vector<std::uint32_t> code_points(random() % 40);
  // Short alphabets bring long runs.
  const std::size_t variety = 1 + random() % std::size(kChosen);
  const std::size_t shift = random() % std::size(kChosen);
  for (std::uint32_t& c : code_points) {
    if (random() % 8 != 0) {
      c = kChosen[(random() % variety + shift) % std::size(kChosen)];
      continue;
    }
    c = static_cast<std::uint32_t>(random()) % kRanges[random() % std::size(kRanges)];
    if (c >= 0xD800 && c < 0xE000) c -= 0x1000;
  }
  return code_points;
}

std::string random_text(std::mt19937& random) {
  std::string text;
  for (const std::uint32_t c : random_code_points(random)) append_code_point(c, text);
  return text;
}

std::vector<std::string> random_texts(std::mt19937& random) {
  std::vector<std::string> texts(1 + random() % 8);
  for (std::string& text : texts) text = random_text(random);
  return texts;
}

std::vector<PromptPart> parts_of(const std::vector<std::string>& texts, std::mt19937& random) {
  std::vector<PromptPart> parts;
  for (const std::string& text : texts) {
    parts.push_back({.text = text});
    if (random() % 2 == 0)
      parts.push_back({.text = "<x>", .token = static_cast<TokenId>(random() % 3)});
  }
  return parts;
}

}  // namespace millrace::api::tokenizer::test
