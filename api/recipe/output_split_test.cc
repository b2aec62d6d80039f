#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "api/recipe/output_lab_test.h"
#include "api/recipe/test_fixtures.h"

namespace millrace::api::recipe {
namespace {

using test::ParsedOutput;
using Ids = std::vector<TokenId>;

struct Sample {
  Ids ids;
  Stage stage = Stage::kAnswer;
};

constexpr const char* kTrickyTexts[] = {
    "2 < 3 and a <｜DSML｜ thing\n\n\n<b",
    "text\n\n\n\n@",
    "<｜DSML｜ calls> is how calls begin\n\n@ and more",
    "｜DSML｜<｜DSML｜<｜DSML｜",
    "thoughts\n\n</think>\n\nSTO STOP @",
    "thoughts @</think>x",
    "x</think><",
    "a <｜DSML｜ calls>\n\n",
    "<｜DSML｜ calls>\n</｜DSML｜ calls>x",
    "</｜DSML｜ calls> \n</｜DSML｜ invoke>",
    "<｜DSML｜ invoke name=\"f\">{\"a\": \"\\u00e9é\"}",
    "\n\n\n\n<</think>\n\n<think>",
};
/// Stands for @ in them.
constexpr std::string_view kCall =
    "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get\">\n<｜DSML｜ parameter name=\"a\" "
    "string=\"false\">{\"k\": [1, \"中\"]}</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ "
    "calls>";

/// The recorded outputs of all fixtures, and texts of every difficulty.
std::vector<Sample> fixture_samples(const test::OutputLab& lab) {
  std::vector<Sample> all;
  const auto add = [&](std::string_view text) {
    const Ids ids = lab.ids(text);
    all.push_back({ids, Stage::kReasoning});
    all.push_back({ids, Stage::kAnswer});
  };
  for (const Json& line : test::read_fixture_lines("deepseek_v4_dsml.jsonl")) {
    add(line["raw_output"].get<std::string>());
  }
  for (const test::CapturedStream& stream : test::captured_streams()) add(stream.output);
  for (const Json& line : test::read_fixture_lines("stream_cases.jsonl")) {
    std::string text;
    for (const Json& chunk : line["chunks"]) {
      if (chunk["kind"] == "text") text += chunk["content"].get<std::string>();
    }
    add(text);
  }
  for (std::string text : kTrickyTexts) {
    if (const std::size_t at = text.find('@'); at != std::string::npos) text.replace(at, 1, kCall);
    add(text);
  }
  return all;
}

/// What nano wrote.
std::vector<Sample> nano_samples() {
  std::vector<Sample> all;
  for (const Json& line : test::read_fixture_lines("nano_outputs.jsonl")) {
    all.push_back({line["ids"].get<Ids>(),
                   line["stage"] == "reasoning" ? Stage::kReasoning : Stage::kAnswer});
  }
  EXPECT_EQ(all.size(), 500u);
  return all;
}

/// Takes a delta after each of the given numbers of tokens.
ParsedOutput parse_in_pieces(const test::OutputLab& lab, const Ids& ids,
                             const ParseOptions& options, const std::vector<std::size_t>& cuts) {
  OutputParser parser(*lab.nano().value.tokenizer, lab.nano().value.control, options);
  ParsedOutput sum;
  std::vector<ToolEvent> events;
  OutputDelta delta;
  const auto take = [&] {
    sum.reasoning += delta.reasoning;
    sum.text += delta.text;
    events.insert(events.end(), delta.tool_events.begin(), delta.tool_events.end());
    delta = {};
  };
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (std::binary_search(cuts.begin(), cuts.end(), i)) take();
    parser.push({ids[i], 0, {}}, delta);
  }
  take();
  sum.finish = parser.finish(FinishReason::kStop, delta);
  take();
  sum.problem = parser.problem();
  sum.calls = test::calls_of(events);
  return sum;
}

/// The same bytes as other tokens: those of two halves, each encoded by itself. A cut inside the
/// spelling of a control token would make it ordinary text, so cuts fall between `bytes`.
Ids recut(const test::OutputLab& lab, const Ids& bytes, std::size_t cut) {
  const auto middle = bytes.begin() + static_cast<std::ptrdiff_t>(cut);
  Ids ids = lab.ids_of_bytes({bytes.begin(), middle});
  const Ids rest = lab.ids_of_bytes({middle, bytes.end()});
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

std::vector<ParseOptions> all_options(Stage stage) {
  ParseOptions release;
  release.stage = stage;
  release.markup = Markup::kCalls;
  release.stops = {"STOP"};
  ParseOptions recipe = release;
  recipe.think_newlines = ThinkNewlines::kDrop;
  recipe.block_newlines = BlockNewlines::kAll;
  ParseOptions known = release;
  known.calls.tools = {{"get_weather", {}}};
  known.calls.unknown_tool = UnknownTool::kAsText;
  return {release, recipe, known};
}

void expect_sound(const ParsedOutput& output) {
  const bool is_open = !output.calls.empty() && !output.calls.back().has_ended;
  EXPECT_TRUE(!is_open || output.finish == FinishReason::kLength);
  EXPECT_TRUE(output.finish != FinishReason::kToolCalls || !output.calls.empty());
  for (const ParsedOutput::Call& call : output.calls) {
    EXPECT_TRUE(!call.has_ended || parse_json(call.arguments).ok()) << call.arguments;
  }
}

/// However an output is cut into tokens, and whenever deltas are taken, it is the same; an output
/// that is cut short never reports a call that has not ended, and calls that ended have arguments
/// that are JSON.
void expect_cuts_do_not_matter(const test::OutputLab& lab, const Sample& sample,
                               std::mt19937& random) {
  const Ids bytes = lab.byte_ids(sample.ids);
  for (const ParseOptions& options : all_options(sample.stage)) {
    const ParsedOutput whole = lab.parse(sample.ids, options);
    expect_sound(whole);
    ASSERT_EQ(lab.parse(bytes, options), whole);
    for (std::size_t cut = 0; cut <= sample.ids.size(); ++cut) {
      ASSERT_EQ(parse_in_pieces(lab, sample.ids, options, {cut}), whole) << "delta at " << cut;
    }
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
      ASSERT_EQ(lab.parse(recut(lab, bytes, cut), options), whole) << "tokens cut at " << cut;
      const auto middle = bytes.begin() + static_cast<std::ptrdiff_t>(cut);
      expect_sound(lab.parse(Ids(bytes.begin(), middle), options));
    }
    for (int round = 0; round < 10; ++round) {
      std::vector<std::size_t> cuts;
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (random() % 8 == 0) cuts.push_back(i);
      }
      ASSERT_EQ(parse_in_pieces(lab, bytes, options, cuts), whole);
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(OutputSplit, Fixtures) {
  const test::OutputLab lab;
  std::mt19937 random(1);
  for (const Sample& sample : fixture_samples(lab)) {
    SCOPED_TRACE(lab.text_of(sample.ids));
    expect_cuts_do_not_matter(lab, sample, random);
    if (HasFailure()) return;
  }
}

TEST(OutputSplit, OutputsOfNano) {
  const test::OutputLab lab;
  std::mt19937 random(2);
  int calls = 0;
  for (const Sample& sample : nano_samples()) {
    SCOPED_TRACE(lab.text_of(sample.ids));
    expect_cuts_do_not_matter(lab, sample, random);
    if (HasFailure()) return;
    calls += lab.parse(sample.ids, all_options(sample.stage)[0]).calls.empty() ? 0 : 1;
  }
  EXPECT_GT(calls, 50);  // the outputs are worth their cutting
}

}  // namespace
}  // namespace millrace::api::recipe
