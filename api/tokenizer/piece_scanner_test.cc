#include "api/tokenizer/piece_scanner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>

#include "api/tokenizer/encode_plan.h"
#include "api/tokenizer/pre_tokenizer.h"
#include "api/tokenizer/test_texts.h"
#include "api/tokenizer/unicode_classes.h"

namespace millrace::api::tokenizer {
namespace {

using Pieces = std::vector<std::string_view>;

std::vector<std::string> patterns(const char* digits = "\\p{N}{1,3}") {
  return {digits, "[一-龥\u3040-ゟ゠-ヿ]+",
          R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
          R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
}

Pieces scan(const PieceScanner& scanner, std::string_view text) {
  Pieces pieces;
  for (std::size_t at = 0; at < text.size();) {
    pieces.push_back(text.substr(at, scanner.piece_length(text, at)));
    at += pieces.back().size();
  }
  return pieces;
}

/// What one pattern of the regular-expression engine says of single characters.
class OneClass {
 public:
  explicit OneClass(const char* pattern) : pattern_(*PreTokenizer::compile({pattern})) {}
  bool has(const std::string& character) const {
    Pieces pieces;
    const std::string text = "\x01" + character + "\x01";
    EXPECT_TRUE(pattern_->cut(text, pieces).ok());
    return pieces.size() == 3;
  }

 private:
  std::unique_ptr<PreTokenizer> pattern_;
};

CharClass class_by_engine(const std::string& character) {
  static const OneClass kHan("[一-龥\u3040-ゟ゠-ヿ]");
  static const OneClass kNewline("[\r\n]");
  static const OneClass kSpace("\\s");
  static const OneClass kWord("[\\p{L}\\p{M}]");
  static const OneClass kDigit("\\p{N}");
  static const OneClass kPunct("[\\p{P}\\p{S}]");
  if (kHan.has(character)) {
    if (kWord.has(character)) return CharClass::kHan;
    return kPunct.has(character) ? CharClass::kHanPunct : CharClass::kHanOther;
  }
  if (kNewline.has(character)) return CharClass::kNewline;
  if (kSpace.has(character)) return CharClass::kSpace;
  if (kWord.has(character)) return CharClass::kWord;
  if (kDigit.has(character)) return CharClass::kDigit;
  return kPunct.has(character) ? CharClass::kPunct : CharClass::kOther;
}

std::string character(std::uint32_t code_point) {
  std::string text;
  test::append_code_point(code_point, text);
  return text;
}

// The engine here has Unicode 14: what came later it does not know, everything else must agree.
TEST(UnicodeClasses, AgreeWithTheEngineOnWhatItKnows) {
  int later = 0;
  for (std::uint32_t c = 1; c < 0xE0200; c += c < 0x3400 || c >= 0x32400 ? 1 : 7) {
    if (c == 0xD800) c = 0xE000;
    if (c == 0x32400) c = 0xE0000;
    const CharClass expected = class_by_engine(character(c));
    if (class_of(c) == expected) continue;
    ASSERT_EQ(expected, CharClass::kOther) << "U+" << std::hex << c;
    ++later;
  }
  EXPECT_LT(later, 1500);
}

TEST(UnicodeClasses, AreThoseOfUnicode16) {
  EXPECT_EQ(class_of(0x1C89), CharClass::kWord);    // new in 16
  EXPECT_EQ(class_of(0x1F6DC), CharClass::kPunct);  // new in 15
  EXPECT_EQ(class_of(0x20C1), CharClass::kOther);   // new in 17
  EXPECT_EQ(class_of(0xE0100), CharClass::kWord);
  EXPECT_EQ(class_of(0xE01F0), CharClass::kOther);
  EXPECT_EQ(class_of(0x10FFFF), CharClass::kOther);
}

TEST(PieceScanner, KnowsOnlyTheThreePatterns) {
  EXPECT_TRUE(PieceScanner::for_patterns(patterns()).has_value());
  EXPECT_TRUE(PieceScanner::for_patterns(patterns("\\p{N}")).has_value());
  EXPECT_FALSE(PieceScanner::for_patterns(patterns("\\d")).has_value());
  auto others = patterns();
  others[2] += " ";
  EXPECT_FALSE(PieceScanner::for_patterns(others).has_value());
  others.pop_back();
  EXPECT_FALSE(PieceScanner::for_patterns(others).has_value());
}

TEST(PieceScanner, TakesNewlinesSpelledAsThemselves) {
  auto spelled = patterns();
  for (const auto& [escape, itself] : {std::pair("\\r", "\r"), std::pair("\\n", "\n")}) {
    for (auto at = spelled[2].find(escape); at != std::string::npos; at = spelled[2].find(escape)) {
      spelled[2].replace(at, 2, itself);
    }
  }
  EXPECT_TRUE(PieceScanner::for_patterns(spelled).has_value());
}

TEST(PieceScanner, CutsAsTheRegularExpressionsDo) {
  std::map<std::uint32_t, bool> agrees;  // about which characters both have one opinion
  for (const char* digits : {"\\p{N}{1,3}", "\\p{N}"}) {
    const auto scanner = PieceScanner::for_patterns(patterns(digits));
    ASSERT_TRUE(scanner.has_value());
    const auto engine = PreTokenizer::compile(patterns(digits));
    ASSERT_TRUE(engine.ok()) << engine.status();
    std::mt19937 random(5);
    for (int i = 0; i < 30'000; ++i) {
      std::string text;
      for (std::uint32_t c : test::random_code_points(random)) {
        const std::string next = character(c);
        const auto [it, is_new] = agrees.try_emplace(c, false);
        if (is_new) it->second = class_of(c) == class_by_engine(next);
        if (it->second || c == 0) text += next;
      }
      Pieces expected;
      ASSERT_TRUE((*engine)->cut(text, expected).ok());
      ASSERT_EQ(scan(*scanner, text), expected) << "text " << i << ": " << text;
    }
  }
}

TEST(PieceScanner, CutsWhereNoPieceChanges) {
  const auto scanner = PieceScanner::for_patterns(patterns());
  std::mt19937 random(6);
  int cuts = 0;
  for (int i = 0; i < 50'000; ++i) {
    std::string text;
    for (std::uint32_t c : test::random_code_points(random)) test::append_code_point(c, text);
    const std::size_t cut = PieceScanner::find_cut(text, random() % (text.size() + 1));
    ASSERT_LE(cut, text.size());
    if (cut == text.size()) continue;
    ++cuts;
    // The parts are texts of their own, so that nothing can look over the border.
    const std::string left = text.substr(0, cut);
    const std::string right = text.substr(cut);
    Pieces pieces = scan(*scanner, left);
    for (std::string_view piece : scan(*scanner, right)) pieces.push_back(piece);
    ASSERT_EQ(pieces, scan(*scanner, text)) << "text " << i << " at " << cut << ": " << text;
  }
  EXPECT_GT(cuts, 10'000);
}

TEST(PieceScanner, FindsNoCutInOnePiece) {
  EXPECT_EQ(PieceScanner::find_cut("abcdef", 2), 6u);
  EXPECT_EQ(PieceScanner::find_cut("abc def", 1), 3u);
  EXPECT_EQ(PieceScanner::find_cut("", 0), 0u);
  EXPECT_EQ(PieceScanner::find_cut("ab", 0), 2u);
  EXPECT_EQ(PieceScanner::find_cut("漢字 x", 1), 6u);  // from inside of a character
}

TEST(EncodePlan, KeepsTextsAndTokensInOrder) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    const auto texts = test::random_texts(random);
    const auto parts = test::parts_of(texts, random);
    const EncodePlan plan = plan_encoding(parts, random() % 2 == 0, 1 + random() % 50);
    std::string joined;
    std::string expected;
    for (const PromptPart& part : parts) expected += part.token < 0 ? part.text : "<token>";
    for (std::size_t task = 0; task < plan.task_count(); ++task) {
      ASSERT_FALSE(plan.task(task).empty());
      for (const PromptPart& part : plan.task(task))
        joined += part.token < 0 ? part.text : "<token>";
    }
    ASSERT_EQ(joined, expected);
  }
}

}  // namespace
}  // namespace millrace::api::tokenizer
