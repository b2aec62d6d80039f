#include "api/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <random>
#include <thread>

#include "api/tokenizer/encode_plan.h"
#include "api/tokenizer/pre_tokenizer.h"
#include "api/tokenizer/test_texts.h"
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
  EXPECT_THAT(pieces_of("東京・大阪"), ElementsAre("東京", "・", "大阪"));
  EXPECT_THAT(pieces_of("漢\u3040漢"), ElementsAre("漢", "\u3040漢"));
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
  EXPECT_THAT(with("/model/vocab/ab", 97), HasSubstr("id 97 is given twice"));
  EXPECT_THAT(with("/model/vocab/ab", 1 << 22), HasSubstr("not a token id"));
  Json no_byte = small_file();
  no_byte["model"]["vocab"].erase("A");
  EXPECT_THAT(refusal(no_byte), HasSubstr("no token for byte 65"));
  EXPECT_THAT(std::string(message_of(Tokenizer::from_json("{\"a\":").status())),
              HasSubstr("parse error"));
}

TEST(TokenizerFile, RefusesKeysThatAreGivenTwice) {
  const std::string file = dump_json(small_file());
  const auto with = [&](const std::string& before, const std::string& twice) {
    std::string changed = file;
    changed.insert(changed.find(before), twice);
    const auto result = Tokenizer::from_json(changed);
    return result.ok() ? "accepted" : std::string(message_of(result.status()));
  };
  EXPECT_THAT(with("\"normalizer\"", "\"model\":1,"),
              HasSubstr("the key \"model\" is given twice"));
  EXPECT_THAT(with("\"merges\"", "\"merges\":[],"), HasSubstr("model: the key \"merges\""));
  EXPECT_THAT(with("\"ab\"", "\"ab\":300,"), HasSubstr("model.vocab[\"ab\"] is given twice"));
  EXPECT_THAT(with("\"id\":257", "\"id\":3,"), HasSubstr("added_tokens[0]: the key \"id\""));
}

TEST(TokenizerFile, NamesAFileThatIsNotThere) {
  const auto result = Tokenizer::open("/nowhere/tokenizer.json");
  EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(message_of(result.status())), HasSubstr("/nowhere/tokenizer.json"));
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

TEST_F(NanoTokenizer, DecodingWhatWasEncodedGivesTheTextBack) {
  std::mt19937 random(11);
  for (int i = 0; i < 1'000'000; ++i) {
    const std::string text = test::random_text(random);
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

TEST_F(NanoTokenizer, AnySegmentationGivesTheSameIdsInTasks) {
  std::mt19937 random(12);
  for (int i = 0; i < 10'000; ++i) {
    const auto texts = test::random_texts(random);
    const auto parts = test::parts_of(texts, random);
    const auto expected = tokenizer_->encode_parts(parts);
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_EQ(tokenizer_->count_parts(parts).value(), expected->size());
    const EncodePlan plan = plan_encoding(parts, true, 1 + random() % 64);
    std::vector<TokenId> ids;
    for (std::size_t task = 0; task < plan.task_count(); ++task) {
      const auto task_ids = tokenizer_->encode_parts(plan.task(task));
      ASSERT_TRUE(task_ids.ok()) << task_ids.status();
      ids.insert(ids.end(), task_ids->begin(), task_ids->end());
    }
    ASSERT_EQ(ids, *expected) << "segmentation " << i;
  }
}

TEST_F(NanoTokenizer, HelpersChangeNoId) {
  std::mt19937 random(13);
  EncodePool pool(3);
  for (int i = 0; i < 30; ++i) {
    std::string text;
    while (text.size() < 60'000) text += test::random_text(random);
    EXPECT_EQ(tokenizer_->encode_text(text, &pool).value(), tokenizer_->encode_text(text).value());
    EXPECT_EQ(tokenizer_->encode_with_special(text, &pool).value(),
              tokenizer_->encode_with_special(text).value());
  }
}

TEST_F(NanoTokenizer, SeveralThreadsShareOnePool) {
  std::mt19937 random(14);
  std::string text;
  while (text.size() < 100'000) text += test::random_text(random);
  const std::vector<TokenId> expected = tokenizer_->encode_text(text).value();
  EncodePool pool(2);
  std::vector<std::thread> callers;
  callers.reserve(4);
  std::atomic<int> right = 0;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 10; ++round) {
        if (tokenizer_->encode_text(text, &pool).value() == expected) ++right;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(right, 40);
}

TEST_F(NanoTokenizer, CountsWhatItWouldEncode) {
  std::mt19937 random(15);
  std::string text;
  while (text.size() < 100'000) text += test::random_text(random);
  EXPECT_EQ(tokenizer_->count_text(text).value(), tokenizer_->encode_text(text).value().size());
  EXPECT_EQ(tokenizer_->count_text("").value(), 0u);
  EXPECT_FALSE(tokenizer_->count_text("\xC3").ok());
}

std::string repeated(std::string_view unit, std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  return text;
}

/// Time that this thread spent on a core: other work on the machine should fail no test.
double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Ten times the text may take twenty times as long, for caches; a quadratic way takes a hundred.
TEST_F(NanoTokenizer, TimeIsLinearInTextOfOneKind) {
  const auto seconds = [&](const std::string& text) {
    double best = 1e9;
    for (int i = 0; i < 3; ++i) {
      const double start = thread_seconds();
      const auto ids = tokenizer_->encode_text(text);
      best = std::min(best, thread_seconds() - start);
      EXPECT_TRUE(ids.ok()) << ids.status();
    }
    return best;
  };
  for (const char* unit : {"a", "7", " ", "\n", "\r\n", " \n\t", "\u0301", "一", "漢字かな", "!",
                           "\u200B", "a ", "1a", "ab", "\U0001F600", "\u3000", "=", "-> "}) {
    const std::string text = repeated(unit, 1'000'000);
    EXPECT_LT(seconds(text), 20 * std::max(seconds(repeated(unit, 100'000)), 0.002)) << unit;
    EXPECT_EQ(tokenizer_->decode(tokenizer_->encode_text(text).value()), text) << unit;
  }
}

}  // namespace
}  // namespace millrace::api::tokenizer
