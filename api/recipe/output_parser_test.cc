#include "api/recipe/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "api/recipe/test_deployment.h"

namespace millrace::api::recipe {
namespace {

using testing::ElementsAre;

class OutputParserTest : public testing::Test {
 protected:
  OutputParser parser(Stage stage, const std::vector<std::string>& stops = {}) {
    ParseOptions options;
    options.stage = stage;
    options.stops = stops;
    return {*nano_.value.tokenizer, nano_.value.control, options};
  }

  static OutputDelta feed(OutputParser& parser, const std::vector<TokenId>& ids) {
    OutputDelta delta;
    for (TokenId id : ids) parser.push({id, 0, {}}, delta);
    parser.finish(FinishReason::kStop, delta);
    return delta;
  }

  /// Tokens of single bytes, so that every cut happens.
  std::vector<TokenId> bytes(const std::string& text) {
    std::vector<TokenId> ids;
    for (char c : text) {
      for (TokenId id = 0; id < nano_.value.tokenizer->id_bound(); ++id) {
        if (nano_.value.tokenizer->token_bytes(id) == std::string_view(&c, 1)) ids.push_back(id);
      }
    }
    EXPECT_EQ(ids.size(), text.size());
    return ids;
  }

  test::NanoDeployment nano_;
};

TEST_F(OutputParserTest, SplitsReasoningFromAnswerAtTheToken) {
  OutputParser s = parser(Stage::kReasoning);
  const OutputDelta delta =
      feed(s, nano_.ids("Let me think.</think>It is 42.<｜end▁of▁sentence｜>"));
  EXPECT_EQ(delta.reasoning, "Let me think.");
  EXPECT_EQ(delta.text, "It is 42.");
  EXPECT_EQ(s.reasoning_tokens(), nano_.ids("Let me think.</think>").size());
}

TEST_F(OutputParserTest, TheSameSpellingInOrdinaryTokensIsText) {
  OutputParser s = parser(Stage::kReasoning);
  EXPECT_EQ(feed(s, *nano_.value.tokenizer->encode_text("a</think>b")).reasoning, "a</think>b");
}

TEST_F(OutputParserTest, DropsARepeatedOpenerAndAStrayCloser) {
  OutputParser reasoning = parser(Stage::kReasoning);
  EXPECT_EQ(feed(reasoning, nano_.ids("<think>r</think>x</think>y")).reasoning, "r");
  OutputParser answer = parser(Stage::kAnswer);
  EXPECT_EQ(feed(answer, nano_.ids("x</think>y<｜end▁of▁sentence｜>")).text, "xy");
}

TEST_F(OutputParserTest, HoldsIncompleteCodePointsAndDropsOneThatIsCutOff) {
  OutputParser s = parser(Stage::kAnswer);
  const std::vector<TokenId> ids = bytes("é😀");
  OutputDelta first;
  for (std::size_t i = 0; i < 5; ++i) s.push({ids[i], 0, {}}, first);
  EXPECT_EQ(first.text, "é");
  s.finish(FinishReason::kStop, first);
  EXPECT_EQ(first.text, "é");
}

TEST_F(OutputParserTest, StopStringsCountInTheAnswerOnlyAndCutIt) {
  OutputParser s = parser(Stage::kReasoning, {"STOP"});
  const OutputDelta delta = feed(s, nano_.ids("a STOP b</think>Answer STOP ignored tail"));
  EXPECT_EQ(delta.reasoning, "a STOP b");
  EXPECT_EQ(delta.text, "Answer ");
  EXPECT_TRUE(s.is_done());
  EXPECT_EQ(s.matched_stop(), "STOP");
}

TEST_F(OutputParserTest, ACallOfAnUnknownToolMayBeText) {
  ParseOptions options;
  options.markup = Markup::kCalls;
  options.calls.tools = {{"known", {}}};
  options.calls.unknown_tool = UnknownTool::kAsText;
  const std::string unknown =
      "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"other\">\n</｜DSML｜ invoke>\n</｜DSML｜ "
      "calls>";
  for (const Stage stage : {Stage::kAnswer, Stage::kReasoning}) {
    options.stage = stage;
    OutputParser s(*nano_.value.tokenizer, nano_.value.control, options);
    OutputDelta delta;
    for (TokenId id : nano_.ids("a" + unknown + " b")) s.push({id, 0, {}}, delta);
    EXPECT_EQ(s.finish(FinishReason::kStop, delta), FinishReason::kStop);
    EXPECT_EQ(stage == Stage::kAnswer ? delta.text : delta.reasoning, "a" + unknown + " b");
    EXPECT_TRUE(delta.tool_events.empty());
    EXPECT_EQ(s.problem(), CallProblem::kUnknownTool);
  }
  // Behind a call that was made there is no way back to text.
  options.stage = Stage::kAnswer;
  OutputParser s(*nano_.value.tokenizer, nano_.value.control, options);
  OutputDelta delta;
  for (TokenId id : nano_.ids("<｜DSML｜ calls><｜DSML｜ invoke name=\"known\"></｜DSML｜ invoke>"
                              "<｜DSML｜ invoke name=\"other\">")) {
    s.push({id, 0, {}}, delta);
  }
  EXPECT_EQ(s.finish(FinishReason::kStop, delta), FinishReason::kLength);
  EXPECT_EQ(delta.text, "");
}

TEST_F(OutputParserTest, AStopStringMayStay) {
  ParseOptions options;
  options.stops = {"STOP"};
  options.keeps_stop = true;
  OutputParser s(*nano_.value.tokenizer, nano_.value.control, options);
  const std::vector<TokenId> ids = nano_.ids("Answer STOP tail");
  const OutputDelta delta = feed(s, ids);
  EXPECT_EQ(delta.text, "Answer STOP");
  std::string of_tokens;
  for (const GeneratedToken& token : delta.text_tokens) {
    of_tokens.append(nano_.value.tokenizer->token_bytes(token.id));
  }
  EXPECT_TRUE(of_tokens.starts_with("Answer STOP"));
}

TEST_F(OutputParserTest, AStopStringInsideOneTokenCutsTheToken) {
  // nano has tokens of several letters: find one and stop on its second letter.
  for (TokenId id = 300; id < nano_.value.tokenizer->id_bound(); ++id) {
    const std::string text(nano_.value.tokenizer->token_bytes(id));
    if (text.size() < 3 || text[0] != 't' || text[1] != 'h') continue;
    OutputParser s = parser(Stage::kAnswer, {text.substr(1, 1)});
    OutputDelta delta;
    s.push({id, -0.5f, {}}, delta);
    EXPECT_EQ(delta.text, "t");
    EXPECT_TRUE(s.is_done());
    ASSERT_EQ(delta.text_tokens.size(), 1u);
    return;
  }
  FAIL() << "no such token";
}

TEST_F(OutputParserTest, TokensComeWithTheTextTheyBegin) {
  OutputParser s = parser(Stage::kAnswer, {"xyz"});
  OutputDelta delta;
  for (TokenId id : bytes("axy")) s.push({id, 0, {}}, delta);
  EXPECT_EQ(delta.text, "a");
  EXPECT_EQ(delta.text_tokens.size(), 1u);  // x and y may still be cut off
  EXPECT_EQ(delta.ids.size(), 3u);
  for (TokenId id : bytes("b")) s.push({id, 0, {}}, delta);
  EXPECT_EQ(delta.text, "axyb");
  EXPECT_EQ(delta.text_tokens.size(), 4u);
}

TEST_F(OutputParserTest, GroupingOfTokensDoesNotMatter) {
  const std::string output =
      "Grüße, 中文 and 😀.</think>The answer: \n\nUs 42 \n\nUse nothing.\n\nUser: more";
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<TokenId> ids;
    // A random mixture of whole tokens and single bytes.
    for (TokenId id : nano_.ids(output)) {
      const std::string text(nano_.value.tokenizer->token_bytes(id));
      if (id < nano_.control("<｜System｜>") && random() % 2 == 0) {
        for (TokenId byte : bytes(text)) ids.push_back(byte);
      } else {
        ids.push_back(id);
      }
    }
    OutputParser s = parser(Stage::kReasoning, {"\n\nUser"});
    OutputDelta delta;
    for (TokenId id : ids) s.push({id, 0, {}}, delta);
    s.finish(FinishReason::kStop, delta);
    ASSERT_EQ(delta.reasoning, "Grüße, 中文 and 😀.") << "seed " << seed;
    ASSERT_EQ(delta.text, "The answer: \n\nUs 42 \n\nUse nothing.") << "seed " << seed;
  }
}

}  // namespace
}  // namespace millrace::api::recipe
