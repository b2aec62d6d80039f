#include <gtest/gtest.h>

#include <set>

#include "api/recipe/output_lab_test.h"
#include "api/recipe/test_fixtures.h"

namespace millrace::api::recipe {
namespace {

using test::ParsedOutput;

ParseOptions options_of(Stage stage) {
  ParseOptions options;
  options.stage = stage;
  options.markup = Markup::kCalls;
  return options;
}

TEST(OutputFixture, DsmlCases) {
  // Where this parser differs on purpose: the marker counts by id only, not in another spelling;
  // other block names, a missing block closer and a missing invoke closer do not lose the call.
  const std::set<std::string> differing = {
      "dsv4_alternate_dsml_tag", "dsv4_wrong_block_name_should_not_parse",
      "dsv4_malformed_unclosed_outer_block", "dsv4_malformed_unclosed_invoke"};
  const test::OutputLab lab;
  std::size_t equal = 0;
  std::size_t different = 0;
  for (const Json& line : test::read_fixture_lines("deepseek_v4_dsml.jsonl")) {
    const auto id = line["id"].get<std::string>();
    SCOPED_TRACE(id);
    const auto raw = line["raw_output"].get<std::string>();
    const ParsedOutput output = lab.parse(raw, options_of(Stage::kAnswer));
    if (differing.contains(id)) {
      ++different;
      if (id == "dsv4_alternate_dsml_tag") {
        EXPECT_EQ(output.text, raw);
      } else {
        EXPECT_EQ(output.calls,
                  (std::vector<ParsedOutput::Call>{{"get_weather", "{\"city\": \"北京\"}", true}}));
        EXPECT_EQ(output.text, "");
      }
      continue;
    }
    ++equal;
    const Json& expected = line["expected"];
    EXPECT_EQ(output.text, expected["content"].is_null() ? "" : expected["content"]);
    EXPECT_EQ(output.finish == FinishReason::kToolCalls, expected["tools_called"].get<bool>());
    ASSERT_EQ(output.calls.size(), expected["tool_calls"].size());
    for (std::size_t i = 0; i < output.calls.size(); ++i) {
      EXPECT_EQ(output.calls[i].name, expected["tool_calls"][i]["name"]);
      EXPECT_EQ(*parse_json(output.calls[i].arguments), expected["tool_calls"][i]["arguments"]);
      EXPECT_TRUE(output.calls[i].has_ended);
    }
  }
  EXPECT_EQ(equal, 14u);
  EXPECT_EQ(different, differing.size());
}

TEST(OutputFixture, V4Streams) {
  const test::OutputLab lab;
  for (const auto& [name, written, expected] : test::captured_streams()) {
    SCOPED_TRACE(name);
    const ParsedOutput output = lab.parse(written, options_of(Stage::kReasoning));
    EXPECT_EQ(output.reasoning, expected["reasoning_content"].get<std::string>());
    EXPECT_EQ(output.text, expected["normal_content"].get<std::string>());
    ASSERT_EQ(output.calls.size(), expected["tool_calls"].size());
    for (std::size_t i = 0; i < output.calls.size(); ++i) {
      const Json& function = expected["tool_calls"][i]["function"];
      EXPECT_EQ(output.calls[i].name, function["name"].get<std::string>());
      EXPECT_EQ(output.calls[i].arguments, function["arguments"].get<std::string>());
    }
  }
}

}  // namespace
}  // namespace millrace::api::recipe
