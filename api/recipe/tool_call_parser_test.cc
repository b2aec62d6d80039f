#include "api/recipe/tool_call_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/recipe/output_lab_test.h"
#include "common/json.h"

namespace millrace::api::recipe {
namespace {

using test::ParsedOutput;
using Call = ParsedOutput::Call;

class ToolCallParserTest : public testing::Test {
 protected:
  ToolCallParserTest() {
    options_.markup = Markup::kCalls;
    options_.calls.tools = {{"f", {"city", "days"}}, {"g", {"arguments"}}};
  }

  ParsedOutput parse(const std::string& text, FinishReason reason = FinishReason::kStop) const {
    return lab_.parse(text, options_, reason);
  }

  /// One call of `f` with this inside.
  ParsedOutput call(const std::string& inside) const {
    return parse("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n" + inside +
                 "\n</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  }

  static std::string parameter(const std::string& name, const std::string& is_string,
                               const std::string& value) {
    return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + is_string + "\">" + value +
           "</｜DSML｜ parameter>";
  }

  void expect_whole(const ParsedOutput& output, const std::string& arguments) const {
    EXPECT_EQ(output.finish, FinishReason::kToolCalls);
    EXPECT_EQ(output.problem, CallProblem::kNone);
    EXPECT_EQ(output.text, "");
    EXPECT_EQ(output.calls, (std::vector<Call>{{"f", arguments, true}}));
    EXPECT_TRUE(parse_json(arguments).ok()) << arguments;
  }

  void expect_broken(const ParsedOutput& output, CallProblem problem) const {
    EXPECT_EQ(output.finish, FinishReason::kLength);
    EXPECT_EQ(output.problem, problem);
    for (const Call& made : output.calls) EXPECT_FALSE(made.has_ended);
  }

  test::OutputLab lab_;
  ParseOptions options_;
};

TEST_F(ToolCallParserTest, ReadsNamesKeysAndValues) {
  expect_whole(call(parameter("city", "true", "Paris") + "\n" + parameter("days", "false", "3")),
               R"({"city": "Paris", "days": 3})");
  expect_whole(call(""), "{}");
  expect_whole(call(parameter("a", "false", " [1, {\"b\": null}] ") +
                    parameter("b", "false", "true") + parameter("c", "false", "-1.5e3")),
               R"({"a": [1, {"b": null}], "b": true, "c": -1.5e3})");
}

TEST_F(ToolCallParserTest, TakesKeysAndValuesAsTheyAre) {
  expect_whole(call(parameter("shipping address", "true", "a\n\"b\" <c> & </think>&amp;\\") +
                    parameter(" string= mode ", "true", "") + parameter("", "true", "x") +
                    parameter("q\"uo\"te", "true", "<b>1</b>")),
               R"({"shipping address": "a\n\"b\" <c> & </think>&amp;\\", " string= mode ": "", )"
               R"("": "x", "q\"uo\"te": "<b>1</b>"})");
}

TEST_F(ToolCallParserTest, MarkupThatClosesNothingStaysInTheValue) {
  expect_whole(
      call(parameter("a", "true", "the <｜DSML｜ calls> tag, ｜DSML｜, </｜DSML｜x and <")),
      R"({"a": "the <｜DSML｜ calls> tag, ｜DSML｜, </｜DSML｜x and <"})");
}

TEST_F(ToolCallParserTest, AcceptsBothDialectsAndOtherBlockNames) {
  for (const char* text :
       {"<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
        "string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        "<｜DSML｜function_calls><｜DSML｜ invoke name=\"f\"><｜DSML｜parameter name=\"a\" "
        "string=\"true\">x</｜DSML｜ parameter></｜DSML｜invoke></｜DSML｜ calls>",
        "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" "
        "string=\"true\">x</｜DSML｜parameter></｜DSML｜invoke>"}) {
    SCOPED_TRACE(text);
    expect_whole(parse(text), R"({"a": "x"})");
  }
}

TEST_F(ToolCallParserTest, MakesUpForMissingClosersAndMarkers) {
  const std::string open_city = "<｜DSML｜ parameter name=\"city\" string=\"true\">Paris";
  expect_whole(call(open_city + parameter("days", "false", "3")),
               R"({"city": "Paris", "days": 3})");
  expect_whole(call(open_city), R"({"city": "Paris\n"})");
  expect_whole(call("<parameter name=\"city\" string=\"true\">Paris</parameter>"),
               R"({"city": "Paris"})");
  expect_whole(call("<parameter name=\"city\" string=\"true\">Paris</｜DSML｜ parameter>"),
               R"({"city": "Paris"})");
  expect_whole(call(parameter("city", "true", "a</parameter>b")), R"({"city": "a</parameter>b"})");
  expect_whole(parse("<｜DSML｜ calls><｜DSML｜ invoke name=\"f\"></｜DSML｜ calls>"), "{}");
  expect_whole(parse("<｜DSML｜ calls><｜DSML｜ invoke name=\"f\"></｜DSML｜ invoke>"), "{}");
}

TEST_F(ToolCallParserTest, ReadsWhatIsNoJsonAsAString) {
  for (const char* value :
       {"hello", "3 apples", "truely", "nul", "-", "1.", "01", "Infinity", ""}) {
    expect_whole(call(parameter("a", "false", value)), std::string("{\"a\": \"") + value + "\"}");
  }
  const std::string long_number(3000, '1');
  expect_whole(call(parameter("a", "false", long_number)), "{\"a\": \"" + long_number + "\"}");
}

TEST_F(ToolCallParserTest, AValueThatBreaksOffAsJsonEndsTheCall) {
  for (const char* value :
       {"{\"a\": 1", "[1,]", "{\"a\" 1}", "\"a\" b", "[1] x", "{\"a\":tru}", "\"line\nbreak\""}) {
    SCOPED_TRACE(value);
    expect_broken(call(parameter("a", "false", value)), CallProblem::kBadJson);
  }
}

TEST_F(ToolCallParserTest, NeverEndsACallWhoseArgumentsAreUnclear) {
  expect_broken(call("<｜DSML｜ parameter name=\"city\">Paris</｜DSML｜ parameter>"),
                CallProblem::kBadKey);
  expect_broken(call("city=Paris"), CallProblem::kStrayText);
  expect_broken(call(parameter("a", "true", "1") + parameter("a", "true", "2")),
                CallProblem::kRepeatedKey);
  expect_broken(call(parameter(std::string(2000, 'k'), "true", "1")), CallProblem::kBadKey);
  expect_broken(parse("<｜DSML｜ invoke name=\"" + std::string(2000, 'n') + "\">"),
                CallProblem::kBadName);
  expect_broken(parse("<｜DSML｜ invoke name=\"a<｜DSML｜ invoke>"), CallProblem::kBadName);
}

TEST_F(ToolCallParserTest, ABodyThatIsAnObjectIsTheArguments) {
  expect_whole(call(R"({"city": "Paris", "x": "</｜DSML｜ invoke>"})"),
               R"({"city": "Paris", "x": "</｜DSML｜ invoke>"})");
  expect_broken(call(R"({"city": )"), CallProblem::kBadJson);
  expect_broken(call(R"({"a":1})" + parameter("city", "true", "x")), CallProblem::kWrappedTwice);
}

TEST_F(ToolCallParserTest, UnwrapsArgumentsThatTheSchemaLacks) {
  expect_whole(call(parameter("arguments", "false", R"({"city": "Paris"})")),
               R"({"city": "Paris"})");
  expect_whole(call(parameter("input", "true", R"( {"city": "Paris"})")), R"({"city": "Paris"})");
  expect_whole(call(parameter("arguments", "false", "{}")), "{}");
  expect_whole(call(parameter("arguments", "false", R"({"other": 1})")),
               R"({"arguments": {"other": 1}})");
  expect_whole(call(parameter("arguments", "true", "x")), R"({"arguments": "x"})");
  expect_broken(call(parameter("input", "true", R"({"city": 1})") + parameter("days", "true", "")),
                CallProblem::kWrappedTwice);
  const ParsedOutput kept =
      parse("<｜DSML｜ invoke name=\"g\">" + parameter("arguments", "false", R"({"city": 1})") +
            "</｜DSML｜ invoke>");
  EXPECT_EQ(kept.calls, (std::vector<Call>{{"g", R"({"arguments": {"city": 1}})", true}}));
}

TEST_F(ToolCallParserTest, UnknownToolsPassUnlessRefused) {
  const std::string text = "<｜DSML｜ invoke name=\"h\"></｜DSML｜ invoke>";
  EXPECT_EQ(parse(text).calls, (std::vector<Call>{{"h", "{}", true}}));
  options_.calls.unknown_tool = UnknownTool::kReject;
  EXPECT_TRUE(parse(text).calls.empty());
  expect_broken(parse(text), CallProblem::kUnknownTool);
}

TEST_F(ToolCallParserTest, OneCallIsEnoughWhenOnlyOneIsAllowed) {
  const std::string two =
      "<｜DSML｜ calls><｜DSML｜ invoke name=\"f\"></｜DSML｜ invoke>"
      "<｜DSML｜ invoke name=\"g\"></｜DSML｜ invoke></｜DSML｜ calls>";
  EXPECT_EQ(parse(two).calls.size(), 2u);
  options_.calls.parallel_calls = ParallelCalls::kOnlyOne;
  EXPECT_EQ(parse(two).calls.size(), 1u);
  EXPECT_EQ(parse(two).finish, FinishReason::kToolCalls);
}

TEST_F(ToolCallParserTest, ACallThatIsCutOffIsNotReportedAsMade) {
  const std::string first = "<｜DSML｜ calls><｜DSML｜ invoke name=\"f\">" +
                            parameter("city", "true", "Rome") + "</｜DSML｜ invoke>";
  const ParsedOutput cut = parse(
      first + "<｜DSML｜ invoke name=\"g\"><｜DSML｜ parameter name=\"a\" string=\"true\">Par");
  EXPECT_EQ(cut.finish, FinishReason::kLength);
  EXPECT_EQ(cut.calls,
            (std::vector<Call>{{"f", R"({"city": "Rome"})", true}, {"g", R"({"a": "Par)", false}}));
  EXPECT_EQ(parse(first, FinishReason::kStop).finish, FinishReason::kToolCalls);
  EXPECT_EQ(parse(first, FinishReason::kLength).finish, FinishReason::kLength);
  EXPECT_EQ(parse(first + "</｜DSML｜ calls>", FinishReason::kLength).finish,
            FinishReason::kToolCalls);
}

TEST_F(ToolCallParserTest, AForcedCallBeginsInsideTheBlock) {
  options_.stage = Stage::kToolBlock;
  expect_whole(parse("<｜DSML｜ invoke name=\"f\">\n" + parameter("city", "true", "x") +
                     "\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"),
               R"({"city": "x"})");
  EXPECT_EQ(parse("nothing").finish, FinishReason::kStop);
}

}  // namespace
}  // namespace millrace::api::recipe
