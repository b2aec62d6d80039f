#include "api/recipe/json_validator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "api/recipe/json_text.h"
#include "common/json.h"

namespace millrace::api::recipe {
namespace {

bool is_valid(std::string_view text) {
  JsonValidator validator;
  for (char byte : text) {
    if (!validator.push(byte)) return false;
  }
  return validator.is_complete();
}

/// A JSON text with up to two edits, which often break it.
std::string edited_text(std::mt19937& random) {
  static const std::vector<std::string> kSeeds = {
      R"({"a":[1,-2.5e+3,true,false,null],"b":{"c":"x\n\u00e9\"\\"},"d":[]})",
      R"([0,0.5,-0,1E5,[[]],{},{"":""}])", R"("text")", " -12.25e-2 ", "true"};
  static const std::string kAlphabet = "{}[]\",:0123456789.-+eEtrufalsn \\/x";
  std::string text = kSeeds[random() % kSeeds.size()];
  for (auto edits = random() % 3; edits > 0; --edits) {
    const std::size_t at = random() % text.size();
    switch (random() % 3) {
      case 0:
        text[at] = kAlphabet[random() % kAlphabet.size()];
        break;
      case 1:
        text.insert(at, 1, kAlphabet[random() % kAlphabet.size()]);
        break;
      default:
        if (text.size() > 1) text.erase(at, 1);
    }
  }
  return text;
}

TEST(JsonValidator, AgreesWithTheJsonLibraryOnMutatedTexts) {
  std::mt19937 random(1);
  int valid = 0;
  for (int i = 0; i < 200000; ++i) {
    const std::string text = edited_text(random);
    // accept() checks grammar alone, as the validator does.
    // Numbers of any size are grammatical; the library wants a double.
    const bool expected = Json::accept(clamp_numbers(text).value_or(text));
    ASSERT_EQ(is_valid(text), expected) << text;
    valid += expected ? 1 : 0;
  }
  EXPECT_GT(valid, 20000);
}

TEST(JsonValidator, TakesPiecesAsItTakesTheirBytes) {
  std::mt19937 random(2);
  int whole = 0;
  for (int i = 0; i < 200000; ++i) {
    // Of a list the end is certain; what stands behind it is not taken.
    const std::string text = "[" + edited_text(random) + "] ";
    JsonValidator by_bytes;
    std::size_t expected = 0;
    while (!by_bytes.is_complete() && expected < text.size() && by_bytes.push(text[expected])) {
      ++expected;
    }
    JsonValidator in_pieces;
    std::size_t taken = 0;
    for (std::size_t piece = 0, fit = 0; taken < text.size() && fit == piece; taken += fit) {
      piece = std::min(1 + random() % 5, text.size() - taken);
      fit = in_pieces.push_value(std::string_view(text).substr(taken, piece));
    }
    ASSERT_EQ(taken, expected) << text;
    ASSERT_EQ(in_pieces.is_complete(), by_bytes.is_complete()) << text;
    whole += in_pieces.is_complete() ? 1 : 0;
  }
  EXPECT_GT(whole, 20000);
}

TEST(JsonValidator, SurrogatesStandInPairs) {
  for (const char* text : {R"("\ud83d\ude00")", R"("a\uDBFF\uDFFFb")", R"("\ud7ff\ue000")"}) {
    EXPECT_TRUE(is_valid(text) && Json::accept(text)) << text;
  }
  for (const char* text : {R"("\ud83d")", R"("\ude00")", R"("\ud83dx")", R"("\ud83d\n")",
                           R"("\ud83d\ud83d")", R"("\ud83d\u0041")", R"({"\udfff":1})"}) {
    EXPECT_FALSE(is_valid(text) || Json::accept(text)) << text;
  }
}

TEST(JsonValidator, BoundsNesting) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(is_valid(nested(JsonValidator::kMaxDepth)));
  EXPECT_FALSE(is_valid(nested(JsonValidator::kMaxDepth + 1)));
}

}  // namespace
}  // namespace millrace::api::recipe
