#include "api/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <random>

#include "api/tokenizer/pre_tokenizer.h"
#include "api/tokenizer/utf8_stream.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::api::tokenizer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kNanoFile = MILLRACE_SOURCE_DIR "/deploy/models/nano/tokenizer.json";

/// The three patterns of the DeepSeek V3, V4 and V4.1 files.
std::vector<std::string> deepseek_patterns() {
  return {R"(\p{N}{1,3})", R"([一-龥぀-ゟ゠-ヿ]+)",
          R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
          R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
}

std::vector<std::string> pieces_of(const std::string& text) {
  static const auto kPreTokenizer = PreTokenizer::compile(deepseek_patterns());
  EXPECT_TRUE(kPreTokenizer.ok()) << kPreTokenizer.status();
  std::vector<std::string_view> pieces;
  EXPECT_TRUE((*kPreTokenizer)->cut(text, pieces).ok());
  return {pieces.begin(), pieces.end()};
}

// Recorded from the reference library with DeepSeek's file.
TEST(PreTokenizer, CutsAsTheReferenceLibraryDoes) {
  EXPECT_THAT(pieces_of("a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(pieces_of("a  1"), ElementsAre("a", "  ", "1"));
  EXPECT_THAT(pieces_of("a  中"), ElementsAre("a", "  ", "中"));
  EXPECT_THAT(pieces_of("a \n b"), ElementsAre("a", " \n", " b"));
  EXPECT_THAT(pieces_of("don't"), ElementsAre("don", "'t"));
  EXPECT_THAT(pieces_of("!abc"), ElementsAre("!abc"));
  EXPECT_THAT(pieces_of(" !abc"), ElementsAre(" !", "abc"));
  EXPECT_THAT(pieces_of("（abc"), ElementsAre("（", "abc"));
  EXPECT_THAT(pieces_of("12345678"), ElementsAre("123", "456", "78"));
  EXPECT_THAT(pieces_of("中1文"), ElementsAre("中", "1", "文"));
  EXPECT_THAT(pieces_of("x.\r\n\r\ny"), ElementsAre("x", ".\r\n\r\n", "y"));
  const std::string zero(1, '\0');
  EXPECT_THAT(pieces_of(zero + zero + zero + "a" + zero),
              ElementsAre(zero + zero, zero + "a", zero));
  EXPECT_THAT(pieces_of("々一"), ElementsAre("々", "一"));
  EXPECT_THAT(pieces_of("かな漢字ー"), ElementsAre("かな漢字ー"));
}

TEST(PreTokenizer, WhiteSpaceIsUnicodesSet) {
  EXPECT_THAT(pieces_of("a\u0085\u0085"), ElementsAre("a", "\u0085\u0085"));
  // U+180E is a format character, not white space: no pattern takes it, so it is a gap.
  EXPECT_THAT(pieces_of("\u180E "), ElementsAre("\u180E", " "));
}

TEST(PreTokenizer, NamesABadPattern) {
  const auto result = PreTokenizer::compile({"[a-"});
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(std::string(message_of(result.status())), HasSubstr("[a-"));
}

/// A small valid file: 256 bytes, one merge, two added tokens.
Json small_file() {
  Json vocab = Json::object();
  int spare = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const int c = printable ? byte : 256 + spare++;
    std::string spelling;
    if (c < 0x80) {
      spelling.push_back(static_cast<char>(c));
    } else {
      spelling.push_back(static_cast<char>(0xC0 | c >> 6));
      spelling.push_back(static_cast<char>(0x80 | (c & 0x3F)));
    }
    vocab[spelling] = byte;
  }
  vocab["ab"] = 256;
  const auto added = [](int id, const char* content, bool normalized) {
    return Json{{"id", id},        {"content", content}, {"single_word", false},
                {"lstrip", false}, {"rstrip", false},    {"normalized", normalized},
                {"special", false}};
  };
  return Json{{"normalizer", nullptr},
              {"pre_tokenizer",
               {{"type", "Sequence"},
                {"pretokenizers",
                 {{{"type", "Split"},
                   {"pattern", {{"Regex", "\\s+"}}},
                   {"behavior", "Isolated"},
                   {"invert", false}},
                  {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
              {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b"}}}},
              {"added_tokens", {added(257, "<x>", true), added(258, "<x>>", false)}}};
}

std::string refusal(const Json& file) {
  const auto result = Tokenizer::from_json(dump_json(file));
  return result.ok() ? "accepted" : std::string(message_of(result.status()));
}

TEST(TokenizerFile, RefusesByNameWhatItDoesNotDo) {
  ASSERT_EQ(refusal(small_file()), "accepted");
  const auto with = [](const char* pointer, Json value) {
    Json file = small_file();
    file[Json::json_pointer(pointer)] = std::move(value);
    return refusal(file);
  };
  EXPECT_THAT(with("/normalizer", Json{{"type", "NFC"}}),
              HasSubstr("normalizer {\"type\":\"NFC\"}"));
  EXPECT_THAT(with("/model/type", "Unigram"), HasSubstr("model.type = \"Unigram\""));
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("model.dropout = 0.1"));
  EXPECT_THAT(with("/model/byte_fallback", true), HasSubstr("model.byte_fallback = true"));
  EXPECT_THAT(with("/pre_tokenizer/pretokenizers/0/behavior", "Removed"), HasSubstr("\"Removed\""));
  EXPECT_THAT(with("/pre_tokenizer/pretokenizers/0/type", "Digits"), HasSubstr("\"Digits\""));
  EXPECT_THAT(with("/pre_tokenizer/pretokenizers/1/use_regex", true), HasSubstr("use_regex"));
  EXPECT_THAT(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", "("),
              HasSubstr("pattern \"(\""));
  EXPECT_THAT(with("/added_tokens/0/lstrip", true), HasSubstr("added_tokens[0].lstrip"));
  EXPECT_THAT(with("/added_tokens/1/content", "<x>"), HasSubstr("given twice"));
  EXPECT_THAT(with("/added_tokens/0/id", 97), HasSubstr("id 97"));
  EXPECT_THAT(with("/model/merges/0", "a zz"), HasSubstr("\"zz\""));
  EXPECT_THAT(with("/model/merges/0", "ab"), HasSubstr("not a pair"));
  EXPECT_THAT(with("/model/vocab/ab", -3), HasSubstr("-3"));
  Json no_byte = small_file();
  no_byte["model"]["vocab"].erase("A");
  EXPECT_THAT(refusal(no_byte), HasSubstr("no token for byte 65"));
  EXPECT_THAT(std::string(message_of(Tokenizer::from_json("{\"a\":").status())),
              HasSubstr("parse error"));
}

TEST(Tokenizer, MatchesTokensThatAreNotNormalizedFirst) {
  const auto tokenizer = Tokenizer::from_json(dump_json(small_file()));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->encode_with_special("ab<x>>a<x>b"),
              ElementsAre(256, 258, 'a', 257, 'b'));
  EXPECT_THAT(*(*tokenizer)->encode_text("<x>"), ElementsAre('<', 'x', '>'));
  EXPECT_EQ((*tokenizer)->control_token("<x>"), 257);
  EXPECT_EQ((*tokenizer)->control_token("<y>"), std::nullopt);
  EXPECT_EQ((*tokenizer)->token_bytes(-1), "");
  EXPECT_EQ((*tokenizer)->token_bytes(259), "");
}

class NanoTokenizer : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = Tokenizer::open(kNanoFile);
    ASSERT_TRUE(opened.ok()) << opened.status();
    tokenizer_ = std::move(*opened);
  }
  std::unique_ptr<Tokenizer> tokenizer_;
};

std::string run(const std::string& command) {
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::array<char, 65536> buffer{};
  while (const std::size_t count = fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), count);
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return output;
}

TEST_F(NanoTokenizer, GivesTheIdsOfThePythonReference) {
  const std::string lines =
      run("/usr/bin/python3 " MILLRACE_SOURCE_DIR "/api/tokenizer/parity_reference.py " +
          kNanoFile + " 3000 7");
  int compared = 0;
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = lines.find('\n', at);
    const auto line = parse_json(std::string_view(lines).substr(at, end - at));
    ASSERT_TRUE(line.ok()) << line.status();
    at = end + 1;
    const std::string text = line->at("text").get<std::string>();
    ASSERT_EQ(*tokenizer_->encode_text(text), line->at("plain").get<std::vector<TokenId>>())
        << text;
    ASSERT_EQ(*tokenizer_->encode_with_special(text),
              line->at("special").get<std::vector<TokenId>>())
        << text;
    ++compared;
  }
  EXPECT_EQ(compared, 3000);
}

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

std::string random_unicode(std::mt19937& random) {
  std::string text;
  const auto length = static_cast<unsigned>(random() % 40);
  for (unsigned i = 0; i < length; ++i) {
    static constexpr std::uint32_t kRanges[] = {0x80, 0x300, 0x3100, 0xA000, 0x11000, 0x110000};
    const std::uint32_t c = static_cast<std::uint32_t>(random()) % kRanges[random() % 6];
    append_code_point(c >= 0xD800 && c < 0xE000 ? c - 0x1000 : c, text);
  }
  return text;
}

TEST_F(NanoTokenizer, DecodingWhatWasEncodedGivesTheTextBack) {
  std::mt19937 random(11);
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = random_unicode(random);
    const auto ids = tokenizer_->encode_text(text);
    ASSERT_TRUE(ids.ok()) << ids.status() << " in text " << i;
    ASSERT_EQ(tokenizer_->decode(*ids), text) << "text " << i;
  }
}

TEST_F(NanoTokenizer, RequestTextNeverBecomesAControlToken) {
  for (const char* spelling :
       {"<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜end▁of▁sentence｜>"}) {
    const auto control = tokenizer_->control_token(spelling);
    ASSERT_TRUE(control.has_value()) << spelling;
    EXPECT_THAT(*tokenizer_->encode_with_special(spelling), ElementsAre(*control));
    const auto ids = tokenizer_->encode_text(spelling);
    ASSERT_TRUE(ids.ok());
    EXPECT_THAT(*ids, testing::Not(testing::Contains(*control)));
    EXPECT_EQ(tokenizer_->decode(*ids), spelling);
  }
}

TEST_F(NanoTokenizer, RefusesInvalidUtf8WithItsOffset) {
  const auto ids = tokenizer_->encode_text("ab\xFF");
  ASSERT_FALSE(ids.ok());
  EXPECT_THAT(std::string(message_of(ids.status())), HasSubstr("byte 2"));
}

TEST_F(NanoTokenizer, AQuarterMegabyteOfOneKindTakesSecondsAtMost) {
  constexpr std::size_t kLength = 1u << 18;
  std::string marks = "e";
  while (marks.size() < kLength) marks += "\u0301";
  for (const std::string& text : {std::string(kLength, 'a'), std::string(kLength, '7'),
                                  std::string(kLength, ' '), std::string(kLength, '\n'), marks}) {
    const auto start = std::chrono::steady_clock::now();
    const auto ids = tokenizer_->encode_text(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << text[0];
    EXPECT_EQ(tokenizer_->decode(*ids), text);
  }
}

}  // namespace
}  // namespace millrace::api::tokenizer
