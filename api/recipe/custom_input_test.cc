#include "api/recipe/custom_input.h"

#include <gtest/gtest.h>

namespace millrace::api::recipe {
namespace {

/// The text of arguments that come in pieces of this size.
std::string text_of(std::string_view json, std::size_t piece) {
  CustomInput input;
  std::string text;
  for (std::size_t at = 0; at < json.size(); at += piece)
    text += input.push(json.substr(at, piece));
  return text + input.finish();
}

TEST(CustomInput, IsTheStringHoweverItIsCut) {
  struct Case {
    std::string json;
    std::string text;
  };
  const Case cases[] = {
      {R"({"input": "*** Begin Patch\n+\"x\"\\\t/"})", "*** Begin Patch\n+\"x\"\\\t/"},
      {R"({"input": "\u00e9\ud83d\ude00中\u001f"})", "é😀中\x1f"},
      {R"({"input": ""})", ""},
      {R"({"input": "a", "more": "b"})", "a"},
      // Whatever else the model wrote is the text.
      {"{}", "{}"},
      {R"({"input": 7})", R"({"input": 7})"},
      {R"({"patch": "x"})", R"({"patch": "x"})"}};
  for (const Case& one : cases) {
    for (std::size_t piece = 1; piece <= one.json.size(); ++piece) {
      EXPECT_EQ(text_of(one.json, piece), one.text) << "pieces of " << piece;
    }
  }
}

TEST(CustomInput, TextComesOutAsSoonAsItIsCertain) {
  CustomInput input;
  EXPECT_EQ(input.push(R"({"inp)"), "");
  EXPECT_EQ(input.push(R"(ut": "ab\)"), "ab");
  EXPECT_EQ(input.push(R"(nc\ud83d)"), "\nc");
  EXPECT_EQ(input.push(R"(\ude00d)"), "😀d");
  EXPECT_EQ(input.push("\"}"), "");
  EXPECT_EQ(input.finish(), "");
}

}  // namespace
}  // namespace millrace::api::recipe
