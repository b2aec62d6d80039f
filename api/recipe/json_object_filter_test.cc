#include "api/recipe/json_object_filter.h"

#include <gtest/gtest.h>

#include "api/recipe/output_lab_test.h"
#include "api/recipe/output_parser.h"

namespace millrace::api::recipe {
namespace {

std::string filtered(const std::string& text, std::size_t piece) {
  JsonObjectFilter filter;
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += piece) {
    std::string part = text.substr(at, piece);
    filter.push(part);
    out += part;
  }
  return out;
}

TEST(JsonObjectFilter, KeepsTheFirstObjectAndTurnsTheRestIntoSpaces) {
  const std::string object = R"({"a": ["}", "\"}{", {"b": [1]}], "é": 2})";
  for (std::size_t piece = 1; piece < 9; ++piece) {
    EXPECT_EQ(filtered("```json\n" + object + "\n``` Ω {}", piece),
              std::string(8, ' ') + object + std::string(10, ' '));
    EXPECT_EQ(filtered(object, piece), object);
    EXPECT_EQ(filtered("none", piece), "    ");
    EXPECT_EQ(filtered("x{\"cut", piece), " {\"cut");
  }
}

TEST(JsonObjectFilter, WorksOnAnswersInJsonModeBeforeTheStopStrings) {
  const test::OutputLab lab;
  ParseOptions options;
  options.stage = Stage::kReasoning;
  options.is_json = true;
  options.stops = {"```", "1"};
  OutputParser parser(*lab.nano().value.tokenizer, lab.nano().value.control, options);
  OutputDelta output;
  for (const TokenId id : lab.ids("{r}</think>```json {\"a\": 21}"))
    parser.push({id, 0, {}}, output);
  EXPECT_EQ(output.reasoning, "{r}");
  EXPECT_EQ(output.text, std::string(8, ' ') + "{\"a\": 2");
  EXPECT_EQ(parser.matched_stop(), "1");
}

}  // namespace
}  // namespace millrace::api::recipe
