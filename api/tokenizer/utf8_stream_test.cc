#include "api/tokenizer/utf8_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace::api::tokenizer {
namespace {

std::string decode_whole(const std::string& bytes) {
  Utf8Stream stream;
  std::string text;
  stream.push(bytes, text);
  stream.finish(text);
  return text;
}

TEST(Utf8Stream, HoldsAnIncompleteCodePointUntilItIsComplete) {
  Utf8Stream stream;
  std::string text;
  stream.push("a\xE4\xB8", text);
  EXPECT_EQ(text, "a");
  EXPECT_EQ(stream.held_bytes(), 2u);
  stream.push("\xAD", text);
  EXPECT_EQ(text, "a中");
  EXPECT_EQ(stream.held_bytes(), 0u);
}

// The examples of the Unicode standard, section 3.9, tables 3-8 to 3-11.
TEST(Utf8Stream, ReplacesMaximalInvalidPartsAsTheUnicodeStandardShows) {
  EXPECT_EQ(decode_whole("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(decode_whole("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(decode_whole("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB");
  EXPECT_EQ(decode_whole("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "\uFFFD\uFFFD\uFFFD\uFFFDA");
}

TEST(Utf8Stream, GivesTheSameTextForEveryCut) {
  const std::string bytes = "x\xF0\x9F\x98\x80\xE4\xB8\xADé\xFF\xE1\x80z\xF0\x9F";
  const std::string whole = decode_whole(bytes);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    Utf8Stream stream;
    std::string text;
    stream.push(bytes.substr(0, cut), text);
    stream.push(bytes.substr(cut), text);
    stream.finish(text);
    EXPECT_EQ(text, whole) << "cut at " << cut;
  }
}

TEST(FindInvalidUtf8, NamesTheFirstBadByte) {
  EXPECT_EQ(find_invalid_utf8("grüße 中 😀"), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("ab\xFFz"), 2u);
  EXPECT_EQ(find_invalid_utf8("ab\xE4\xB8"), 2u);
}

TEST(FindInvalidUtf8, LooksAtLongTextsAsAtShortOnes) {
  std::string text;
  while (text.size() < 1000) text += "a grüße 中 😀 ";
  EXPECT_EQ(find_invalid_utf8(text), std::string_view::npos);
  for (std::size_t at = 0; at < text.size(); at += 7) {
    std::string broken = text;
    broken[at] = '\xFF';
    const std::size_t found = find_invalid_utf8(broken);
    // Inside of a character, the character is what is broken.
    ASSERT_LE(found, at);
    ASSERT_GE(found + 3, at);
  }
}

}  // namespace
}  // namespace millrace::api::tokenizer
