#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/recipe/messages_request.h"
#include "api/recipe/output_lab_test.h"
#include "api/recipe/prepared_request.h"
#include "api/recipe/test_fixtures.h"

namespace millrace::api::recipe {
namespace {

using testing::HasSubstr;

absl::StatusOr<MessagesRequest> parse(const std::string& body) {
  return parse_messages_request(body, "m", Thinking::kOn, MaxTokens::kRequired);
}

std::string with(const std::string& members) {
  return R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"}])" +
         (members.empty() ? "" : "," + members) + "}";
}

std::string history(const std::string& messages) {
  return R"({"model":"m","max_tokens":9,"thinking":{"type":"disabled"},"messages":[)" + messages +
         "]}";
}

std::string prompt_of(const std::string& body) {
  const auto request = parse(body);
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? test::prompt_text(render(request->conversation)->segments) : "";
}

// Recorded from deepseek-recipe.
TEST(MessagesFixture, Prompts) {
  int count = 0;
  for (const Json& line : test::read_fixture_lines("prompt_cases.jsonl")) {
    if (line["protocol"] != "messages") continue;
    SCOPED_TRACE(line["name"].get<std::string>());
    const auto request = parse(line["body"].dump());
    ++count;
    if (line["expected"].contains("error")) {
      ASSERT_FALSE(request.ok());
      EXPECT_EQ(std::string(request.status().message()),
                line["expected"]["error"].get<std::string>());
      continue;
    }
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_EQ(test::prompt_text(render(request->conversation)->segments),
              line["expected"]["prompt"].get<std::string>());
  }
  EXPECT_EQ(count, 4);
}

TEST(MessagesRequest, TheUserIsThatOfTheMetadata) {
  EXPECT_EQ(parse(with(R"("metadata":{"user_id":"u"})"))->user_id, "u");
  EXPECT_EQ(parse(with(R"("metadata":{"other":1})"))->user_id, "");
  EXPECT_EQ(parse(with(R"("metadata":{"user_id":null})"))->user_id, "");
  EXPECT_EQ(parse(with(""))->user_id, "");
  for (const char* bad : {R"("metadata":{"user_id":7})", R"("metadata":"u")"}) {
    EXPECT_THAT(std::string(parse(with(bad)).status().message()), HasSubstr("metadata")) << bad;
  }
}

/// The piece of arguments that an event brings, or nullptr.
Json* arguments_of(Json& event) {
  if (!event.contains("delta") || !event["delta"].contains("partial_json")) return nullptr;
  return &event["delta"]["partial_json"];
}

// Recorded from deepseek-recipe; ids carry their protocol's prefix here.
TEST(MessagesFixture, Streams) {
  const test::OutputLab lab;
  const Deployment& deployment = lab.nano().value;
  int count = 0;
  for (const Json& line : test::read_fixture_lines("stream_cases.jsonl")) {
    if (line["protocol"] != "messages") continue;
    const auto name = line["name"].get<std::string>();
    SCOPED_TRACE(name);
    Json body = line["body"];
    body["model"] = deployment.model_id;
    body["stream"] = true;
    const auto prepared = prepare_messages(body.dump(), deployment, {"mock-id", 0});
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    std::vector<Json> actual = test::events_of(lab.stream(*prepared, line["chunks"]));
    ASSERT_FALSE(actual.empty());
    EXPECT_EQ(actual[0]["message"]["usage"]["input_tokens"], prepared->prompt.size());
    actual[0]["message"]["usage"]["input_tokens"] = 4;
    EXPECT_EQ(actual[0]["message"]["id"], "msg_mock-id");
    actual[0]["message"]["id"] = "mock-id";
    for (Json& event : actual) {
      if (event.contains("delta") && event["delta"].contains("signature")) {
        event["delta"]["signature"] = "mock-id";
      }
    }
    std::vector<Json> expected = line["events"];
    if (name == "msg_partial_tool") {
      // On purpose: a call that was cut off is never reported as made.
      expected[expected.size() - 2]["delta"]["stop_reason"] = "max_tokens";
    }
    EXPECT_EQ(test::merged(actual, arguments_of), test::merged(expected, arguments_of));
    ++count;
  }
  EXPECT_EQ(count, 4);
}

TEST(Messages, RefusesBadInputAndNamesTheField) {
  const std::string call =
      R"({"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"f","input":{}}]})";
  struct Refusal {
    std::string body;
    std::string param;
    std::string message;
  };
  const std::vector<Refusal> refusals = {
      {R"({"model":"m","messages":[{"role":"user","content":"x"}]})", "max_tokens", "required"},
      {R"({"model":"m","max_tokens":1})", "messages", "required"},
      {history(R"({"role":"user"})"), "messages[0].content", "messages.0.content: Field required"},
      {history(R"({"role":"user","content":[]})"), "messages[0].content", "not be empty"},
      {history(R"({"role":"tool","content":"x"})"), "messages[0].role", "is tool"},
      {history(R"({"role":"user","content":[{"type":"image","source":{}}]})"),
       "messages[0].content[0].source.type", "Field required"},
      {history(R"({"role":"user","content":[{"type":"image","source":{"type":"file"}}]})"),
       "messages[0].content[0].source.type", "must be base64 or url, is file"},
      {history(R"({"role":"system","content":[{"type":"tool_result","tool_use_id":"t1"}]})"),
       "messages[0].content[0].type", "must be text, is tool_result"},
      {with(R"("output_format":{"type":"json_schema"})"), "output_format", "not supported"},
      {with(R"("output_config":{"format":{"type":"json_schema"}})"), "output_config.format",
       "not supported"},
      {with(R"("mcp_servers":[{}])"), "mcp_servers", "not supported"},
      {history(R"({"role":"user","content":[{"type":"video"}]})"), "messages[0].content[0].type",
       "is video"},
      {history(call), "messages[0]", "without `tool_result` blocks"},
      {history(call + R"(,{"role":"user","content":"x"})"), "messages[0]", "after: t1"},
      {history(call + R"(,{"role":"user","content":[{"type":"tool_result","tool_use_id":"t2"}]})"),
       "messages[1]", "unexpected `tool_use_id`"},
      {with(R"("thinking":{"type":"maybe"})"), "thinking.type", "adaptive"},
      {with(R"("output_config":{"effort":"huge"})"), "output_config.effort", "xhigh"},
      {with(R"("stop_sequences":[""])"), "stop_sequences", "1 to 1024"},
      {with(R"("top_k":-1)"), "top_k", "0 to"},
      {with(R"("tools":[{"name":"a"}])"), "tools[0].input_schema", "required"},
      {with(R"("tools":[{"name":"a b","input_schema":{}}])"), "tools[0].name", "1-128"},
      {with(R"("tools":[{"name":"a","input_schema":{}},{"name":"a","input_schema":{}}])"), "tools",
       "unique"},
      {with(R"("tool_choice":{"type":"any"})"), "tool_choice", "tools are given"},
      {with(R"("tools":[{"name":"a","input_schema":{}}],"tool_choice":{"type":"tool","name":"b"})"),
       "tool_choice.name", "'b'"},
      {with(
           R"("tools":[{"name":"a","input_schema":{}}],"tool_choice":{"type":"any"},"thinking":{"type":"enabled"})"),
       "tool_choice", "Thinking mode"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.body);
    const auto request = parse(refusal.body);
    ASSERT_FALSE(request.ok());
    const ErrorDetails details = error_details(request.status());
    EXPECT_EQ(details.param, refusal.param);
    EXPECT_THAT(details.message, HasSubstr(refusal.message));
  }
}

TEST(Messages, PutsResultsBeforeTextAndKeepsExactInputs) {
  EXPECT_EQ(
      prompt_of(history(
          R"({"role":"user","content":"Go"},{"role":"assistant","content":[{"type":"text","text":"A"},
             {"type":"redacted_thinking","data":"x"},
             {"type":"tool_use","id":"t1","name":"f","input":{"n":123456789012345678901,"s":"x"}}]},
             {"role":"user","content":[{"type":"text","text":"and?"},
             {"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"r"},
             {"type":"search_result"}]}]})")),
      "<｜begin▁of▁sentence｜><｜User｜>Go<｜Assistant｜></think>A\n\n<｜DSML｜ calls>\n<｜DSML｜ "
      "invoke name=\"f\">\n<｜DSML｜ parameter name=\"n\" string=\"false\">123456789012345678901"
      "</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"s\" string=\"true\">x</｜DSML｜ "
      "parameter>\n"
      "</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜><｜User｜><tool_result>r\n\n"
      "[Unsupported search_result]</tool_result>\n\nand?<｜Assistant｜></think>");
}

TEST(Messages, ContinuesALastAssistantMessageAndMarksSystemTexts) {
  EXPECT_EQ(prompt_of(history(R"({"role":"user","content":"Go"},{"role":"system","content":"s"},
                                 {"role":"assistant","content":"Once"})")),
            "<｜begin▁of▁sentence｜><｜User｜>Go\n\n<system-reminder>\ns\n</system-reminder>"
            "<｜Assistant｜></think>Once");
}

TEST(Messages, ThinkingWinsOverEffort) {
  const auto off =
      parse(with(R"("thinking":{"type":"disabled"},"output_config":{"effort":"max"})"));
  ASSERT_TRUE(off.ok()) << off.status();
  EXPECT_EQ(off->conversation.thinking, Thinking::kOff);
  const auto on = parse(with(R"("output_config":{"effort":"max"})"));
  EXPECT_EQ(on->conversation.effort.name, Effort::Name::kMax);
  EXPECT_EQ(on->conversation.thinking, Thinking::kOn);
}

TEST(Messages, AWholeAnswerHoldsItsBlocks) {
  const test::OutputLab lab;
  auto prepared = prepare_messages(
      R"({"model":"deepseek-flash","max_tokens":9,"messages":[{"role":"user","content":"q"}]})",
      lab.nano().value, {"7", 0});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  OutputDelta output;
  output.reasoning = "r";
  output.text = "t";
  output.tool_events = {{ToolEvent::Kind::kBegin, "f"},
                        {ToolEvent::Kind::kArguments, "{\"n\": 1e400"},
                        {ToolEvent::Kind::kArguments, "}"},
                        {ToolEvent::Kind::kEnd, ""},
                        {ToolEvent::Kind::kBegin, "g"}};
  const std::string body =
      prepared->encoder->complete({{output, {FinishReason::kStop, "END"}}}, {.prompt_tokens = 3});
  EXPECT_EQ(
      body,
      R"({"id":"msg_7","type":"message","role":"assistant","model":"deepseek-flash","content":[)"
      R"({"type":"thinking","thinking":"r","signature":"msg_7"},{"type":"text","text":"t"},)"
      R"({"type":"tool_use","id":"toolu_7_0","name":"f","input":{"n": 1e400}}],)"
      R"("stop_reason":"stop_sequence","stop_sequence":"END","usage":{"input_tokens":3,)"
      R"("cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0,)"
      R"("service_tier":"standard"}})");
}

TEST(Messages, CountsTheTokensOfThePrompt) {
  const test::OutputLab lab;
  const std::string members =
      R"("model":"deepseek-flash","messages":[{"role":"user","content":"How many?"}]})";
  const auto prepared =
      prepare_messages("{\"max_tokens\":1," + members, lab.nano().value, {"1", 0});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const auto count = count_messages_tokens("{" + members, lab.nano().value);
  ASSERT_TRUE(count.ok()) << count.status();
  EXPECT_EQ((*parse_json(*count))["input_tokens"], prepared->prompt.size());
}

TEST(Messages, ErrorsHaveTheProtocolsForm) {
  EXPECT_EQ(messages_error_body(error_details(absl::UnavailableError("no engine")), "req"),
            R"({"type":"error","error":{"type":"overloaded_error","message":"no engine"},)"
            R"("request_id":"req"})");
}

}  // namespace
}  // namespace millrace::api::recipe
