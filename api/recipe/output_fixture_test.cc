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

/// The content of a captured stream.
std::string content_of(const Json& capture) {
  std::string content;
  for (const Json& event : capture["input_stream"]) {
    const Json& delta = event["data"]["choices"][0]["delta"];
    if (delta.contains("content") && delta["content"].is_string()) {
      content += delta["content"].get<std::string>();
    }
  }
  return content;
}

constexpr const char* kCaptures[] = {"content_before_tool",
                                     "fragmented_tokens",
                                     "mixed_param_types",
                                     "multi_tool",
                                     "no_tool",
                                     "special_chars",
                                     "tool"};

Json capture(const std::string& name) {
  return *parse_json(test::read_fixture("v4-streams/chat_completion_stream_" + name + ".json"));
}

TEST(OutputFixture, V4Streams) {
  const test::OutputLab lab;
  for (const char* name : kCaptures) {
    SCOPED_TRACE(name);
    const Json stream = capture(name);
    const ParsedOutput output = lab.parse(content_of(stream), options_of(Stage::kReasoning));
    const Json& expected = stream["expected_output"];
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

struct Sample {
  std::string text;
  Stage stage = Stage::kAnswer;
};

std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (const Json& line : test::read_fixture_lines("deepseek_v4_dsml.jsonl")) {
    all.push_back({line["raw_output"].get<std::string>(), Stage::kAnswer});
  }
  for (const char* name : kCaptures) all.push_back({content_of(capture(name)), Stage::kReasoning});
  const std::string call =
      "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get\">\n<｜DSML｜ parameter name=\"a\" "
      "string=\"false\">{\"k\": [1, \"中\"]}</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ "
      "calls>";
  const std::vector<std::string> texts = {
      "2 < 3 and a <｜DSML｜ thing\n\n\n<" + std::string("b"),
      "text\n\n\n\n" + call,
      "<｜DSML｜ calls> is how calls begin\n\n" + call + " and more",
      "｜DSML｜<｜DSML｜<｜DSML｜",
      "thoughts\n\n</think>\n\nSTO STOP " + call,
      "thoughts " + call + "</think>x",
      "x</think><",
      "a <｜DSML｜ calls>\n\n",
      "<｜DSML｜ calls>\n</｜DSML｜ calls>x",
      "</｜DSML｜ calls> \n</｜DSML｜ invoke>",
      "<｜DSML｜ invoke name=\"f\">{\"a\": \"\\u00e9é\"}",
      std::string("\n\n\n\n<") + "</think>\n\n<think>"};
  for (const std::string& text : texts) {
    all.push_back({text, Stage::kReasoning});
    all.push_back({text, Stage::kAnswer});
  }
  return all;
}

// However an output is cut into tokens, it is the same; an output that is cut short never reports a
// call that has not ended, and calls that ended have arguments that are JSON.
TEST(OutputProperty, CutsDoNotMatter) {
  const test::OutputLab lab;
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.text);
    for (const bool is_recipe : {false, true}) {
      ParseOptions options = options_of(sample.stage);
      options.stops = {"STOP"};
      if (is_recipe) {
        options.think_newlines = ThinkNewlines::kDrop;
        options.block_newlines = BlockNewlines::kAll;
      }
      const ParsedOutput whole = lab.parse(sample.text, options);
      ASSERT_EQ(lab.parse(lab.byte_ids(sample.text), options), whole);
      // A cut inside the spelling of a control token would make it ordinary text, so cuts are made
      // between the tokens' bytes.
      const std::vector<TokenId> bytes = lab.byte_ids(sample.text);
      for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
        const auto middle = bytes.begin() + static_cast<std::ptrdiff_t>(cut);
        const auto text_of = [&](auto begin, auto end) {
          std::string text;
          for (auto it = begin; it != end; ++it) {
            text += lab.nano().value.tokenizer->token_bytes(*it);
          }
          return text;
        };
        std::vector<TokenId> ids = lab.ids(text_of(bytes.begin(), middle));
        for (TokenId id : lab.ids(text_of(middle, bytes.end()))) ids.push_back(id);
        ASSERT_EQ(lab.parse(ids, options), whole) << "cut at " << cut;
        const ParsedOutput part = lab.parse(std::vector<TokenId>(bytes.begin(), middle), options);
        const bool is_open = !part.calls.empty() && !part.calls.back().has_ended;
        ASSERT_TRUE(!is_open || part.finish == FinishReason::kLength) << "cut at " << cut;
        ASSERT_TRUE(part.finish != FinishReason::kToolCalls || !part.calls.empty());
        for (const ParsedOutput::Call& call : part.calls) {
          ASSERT_TRUE(!call.has_ended || parse_json(call.arguments).ok()) << call.arguments;
        }
      }
    }
  }
}

// Deltas may be taken at any time: what they add up to is the same.
TEST(OutputProperty, DeltasAddUp) {
  const test::OutputLab lab;
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.text);
    const std::vector<TokenId> ids = lab.byte_ids(sample.text);
    const ParsedOutput whole = lab.parse(ids, options_of(sample.stage));
    OutputParser parser(*lab.nano().value.tokenizer, lab.nano().value.control,
                        options_of(sample.stage));
    ParsedOutput sum;
    std::vector<ToolEvent> events;
    const auto add = [&](const OutputDelta& delta) {
      sum.reasoning += delta.reasoning;
      sum.text += delta.text;
      events.insert(events.end(), delta.tool_events.begin(), delta.tool_events.end());
    };
    for (TokenId id : ids) {
      OutputDelta delta;
      parser.push({id, 0, {}}, delta);
      add(delta);
    }
    OutputDelta last;
    sum.finish = parser.finish(FinishReason::kStop, last);
    add(last);
    sum.problem = parser.problem();
    sum.calls = test::calls_of(events);
    EXPECT_EQ(sum, whole);
  }
}

}  // namespace
}  // namespace millrace::api::recipe
