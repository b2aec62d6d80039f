#include "api/recipe/responses_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/recipe/request_error.h"
#include "api/recipe/responses_input.h"
#include "api/recipe/responses_items.h"
#include "api/recipe/test_deployment.h"
#include "api/recipe/test_fixtures.h"

namespace millrace::api::recipe {
namespace {

using testing::HasSubstr;

class ResponsesRequestTest : public testing::Test {
 protected:
  absl::StatusOr<ResponsesRequest> parse(const std::string& body,
                                         std::optional<std::string_view> earlier = {}) const {
    return parse_responses_request({body, "7", earlier}, nano_.value);
  }

  /// A request that does not think, with this input.
  absl::StatusOr<ResponsesRequest> parse_items(const std::string& items,
                                               std::optional<std::string_view> earlier = {}) const {
    return parse(R"({"model":"deepseek-flash","reasoning":{"effort":"none"},)" +
                     std::string(earlier ? R"("previous_response_id":"resp_1_e",)" : "") +
                     R"("input":[)" + items + "]}",
                 earlier);
  }

  std::string prompt_of(const absl::StatusOr<ResponsesRequest>& request) const {
    EXPECT_TRUE(request.ok()) << request.status();
    return request.ok() ? test::prompt_text(render(request->conversation)->segments) : "";
  }

  test::NanoDeployment nano_;
};

std::string with(const std::string& members) {
  return R"({"model":"deepseek-flash","input":"q")" + (members.empty() ? "" : "," + members) + "}";
}

// Recorded from deepseek-recipe.
TEST_F(ResponsesRequestTest, Prompts) {
  int count = 0;
  for (const Json& line : test::read_fixture_lines("prompt_cases.jsonl")) {
    if (line["protocol"] != "responses") continue;
    const auto name = line["name"].get<std::string>();
    SCOPED_TRACE(name);
    nano_.value.model_id = line["body"]["model"].get<std::string>();
    const auto request = parse(line["body"].dump());
    ++count;
    if (name == "resp_unsupported_custom") {
      // On purpose: any custom tool is offered, as a function that takes a text.
      ASSERT_TRUE(request.ok()) << request.status();
      EXPECT_THAT(request->custom_tools, testing::ElementsAre("other_tool"));
      continue;
    }
    EXPECT_EQ(prompt_of(request), line["expected"]["prompt"].get<std::string>());
  }
  EXPECT_EQ(count, 4);
}

// The shape of Codex's requests, written by hand: instructions, developer and user messages, an
// answered call, functions, the patch tool with its grammar, a search tool, sealed reasoning.
TEST_F(ResponsesRequestTest, CodexsRequest) {
  const auto request = parse(test::read_fixture("codex_request.json"));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->is_streamed);
  EXPECT_FALSE(request->is_stored);
  EXPECT_TRUE(request->seals_reasoning);
  EXPECT_EQ(request->reasoning_form, ReasoningForm::kSummary);
  EXPECT_EQ(request->parallel_calls, ParallelCalls::kOnlyOne);
  EXPECT_THAT(request->custom_tools, testing::ElementsAre("apply_patch"));
  std::vector<std::string> names;
  for (const Tool& tool : request->conversation.tools) names.push_back(tool.full_name());
  EXPECT_THAT(names, testing::ElementsAre("shell_command", "update_plan", "apply_patch",
                                          "mcp__docs::search"));
  const std::string prompt = prompt_of(request);
  EXPECT_THAT(prompt, HasSubstr("<｜System｜>Reasoning Effort: 75"));
  EXPECT_THAT(prompt, HasSubstr("<｜System｜># Sandbox\n\nwrite access<｜User｜>Mend the test."
                                "<｜Assistant｜><think>I look first.</think>"));
  EXPECT_THAT(prompt, HasSubstr("string=\"true\">*** Begin Patch\n*** End Patch\n</｜DSML｜"));
  EXPECT_THAT(prompt, testing::EndsWith("<tool_result>Done!</tool_result><｜Assistant｜><think>"));
}

TEST_F(ResponsesRequestTest, ContinuesAnEarlierResponse) {
  const auto first = parse(with(R"("instructions":"Be terse.","reasoning":{"effort":"none"})"));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*parse_json(first->input_items),
            *parse_json(R"([{"type":"message","id":"msg_7_in0","role":"user",
                             "content":[{"type":"input_text","text":"q"}],"status":"completed"}])"));
  // What a store hands back: the earlier input and the earlier output. Instructions are not
  // inherited.
  const std::string earlier =
      R"([{"type":"message","id":"msg_7_in0","role":"user","content":[{"type":"input_text","text":"q"}]},
          {"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{}","status":"completed"}])";
  const auto second =
      parse_items(R"({"type":"function_call_output","call_id":"c1","output":"r"})", earlier);
  EXPECT_EQ(
      prompt_of(second),
      "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n<｜DSML｜ "
      "invoke name=\"f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜><｜User｜>"
      "<tool_result>r</tool_result><｜Assistant｜></think>");
  EXPECT_EQ((*parse_json(second->input_items)).size(), 3u);
  const auto unanswered = parse_items(R"({"role":"user","content":"x"})", earlier);
  EXPECT_EQ(std::string(unanswered.status().message()),
            "No tool output found for function call c1.");
  EXPECT_EQ(error_details(parse(with(R"("previous_response_id":"resp_1_e")")).status()).param,
            "previous_response_id");
}

TEST_F(ResponsesRequestTest, ItemsBetweenCallsAndOutputsFindTheirPlace) {
  const auto request = parse_items(
      R"({"role":"user","content":"Go"},{"type":"web_search_call","id":"ws"},
         {"role":"assistant","content":"A"},
         {"type":"function_call","call_id":"c2","name":"f","namespace":"n","arguments":"{\"k\": 1}"},
         {"role":"user","content":"wait"},
         {"type":"custom_tool_call","call_id":"c1","name":"p","input":"a\"b"},
         {"type":"custom_tool_call_output","call_id":"c1","output":"r1"},
         {"type":"function_call_output","call_id":"c2",
          "output":[{"type":"input_text","text":"r2"},{"type":"input_file","filename":"x"}]})");
  EXPECT_EQ(
      prompt_of(request),
      "<｜begin▁of▁sentence｜><｜User｜>Go<｜Assistant｜></think>A\n\n<｜DSML｜ calls>\n<｜DSML｜ "
      "invoke name=\"n::f\">\n<｜DSML｜ parameter name=\"k\" string=\"false\">1</｜DSML｜ "
      "parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"p\">\n<｜DSML｜ parameter "
      "name=\"input\" string=\"true\">a\"b</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ "
      "calls><｜end▁of▁sentence｜><｜User｜><tool_result>r2\n\n[Unsupported Document]</tool_result>"
      "\n\n<tool_result>r1</tool_result>\n\nwait<｜Assistant｜></think>");
}

TEST_F(ResponsesRequestTest, ACutCallWithoutAnOutputIsLeftOut) {
  const std::string call =
      R"({"role":"user","content":"Go"},{"role":"assistant","content":"A"},
         {"type":"function_call","call_id":"c","name":"f","arguments":"{\"k","status":"incomplete"},)";
  EXPECT_EQ(
      prompt_of(parse_items(call + R"({"role":"user","content":"On"})")),
      "<｜begin▁of▁sentence｜><｜User｜>Go<｜Assistant｜></think>A<｜end▁of▁sentence｜><｜User｜>On"
      "<｜Assistant｜></think>");
  EXPECT_THAT(prompt_of(parse_items(
                  call + R"({"type":"function_call_output","call_id":"c","output":"bad"})")),
              HasSubstr("name=\"arguments\" string=\"true\">{\"k<"));
}

TEST_F(ResponsesRequestTest, ReasoningIsReadFromContentOrFromItsSeal) {
  const auto request = parse(
      R"({"model":"deepseek-flash","input":[{"role":"user","content":"Go"},
         {"type":"reasoning","summary":[{"type":"summary_text","text":"s"}],"encrypted_content":"foreign"},
         {"type":"reasoning","summary":[],"encrypted_content":")" +
      seal_reasoning("deep") + R"("},
         {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"a"},
          {"type":"reasoning_text","text":"b"}]},
         {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
         {"type":"function_call_output","call_id":"c","output":"r"}],
         "tools":[{"type":"function","name":"f"}]})");
  EXPECT_THAT(prompt_of(request), HasSubstr("<think>deep\na\nb</think>"));
}

TEST_F(ResponsesRequestTest, ChoicesOfTools) {
  const std::string tools =
      R"("tools":[{"type":"function","name":"a","strict":true,"parameters":{"type":"object","properties":{"x":{"maximum":1e400}}}},
                  {"type":"custom","name":"c","format":{"type":"text"}},
                  {"type":"namespace","name":"n","tools":[{"type":"function","name":"a"}]},
                  {"type":"web_search"}],"tool_choice":)";
  using Kind = ToolChoice::Kind;
  struct Case {
    std::string choice;
    Kind kind;
    std::string name;
    std::size_t offered;
  };
  const Case cases[] = {
      {R"("auto")", Kind::kAuto, "", 3},
      {R"("none")", Kind::kNone, "", 3},
      {R"("required")", Kind::kRequired, "", 3},
      {R"({"type":"function","name":"a"})", Kind::kNamed, "a", 3},
      {R"({"type":"function","name":"a","namespace":"n"})", Kind::kNamed, "n::a", 3},
      {R"({"type":"custom","name":"c"})", Kind::kNamed, "c", 3},
      {R"({"type":"web_search"})", Kind::kAuto, "", 3},
      {R"({"type":"allowed_tools","mode":"auto","tools":[{"type":"custom","name":"c"}]})",
       Kind::kAuto, "", 1},
      {R"({"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"a"},
           {"type":"web_search"}]})",
       Kind::kRequired, "", 1}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.choice);
    const auto request = parse(with(tools + one.choice));
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_EQ(request->conversation.tool_choice.kind, one.kind);
    EXPECT_EQ(request->conversation.tool_choice.name, one.name);
    EXPECT_EQ(request->conversation.tools.size(), one.offered);
    // Numbers that no double holds are repeated as they came.
    EXPECT_THAT(request->echo, HasSubstr("1e400"));
  }
}

TEST_F(ResponsesRequestTest, TheUserIsTheSafetyIdentifierElseTheUser) {
  EXPECT_EQ(parse(with(R"("user":"u","safety_identifier":"s")"))->user_id, "s");
  EXPECT_EQ(parse(with(R"("safety_identifier":"s")"))->user_id, "s");
  EXPECT_EQ(parse(with(R"("user":"u")"))->user_id, "u");
  EXPECT_EQ(parse(with(R"("user":null)"))->user_id, "");
  EXPECT_FALSE(parse(with(R"("safety_identifier":7)")).ok());
}

TEST_F(ResponsesRequestTest, RepeatsTheRequestWithDefaults) {
  const auto request = parse(with(R"("text":{"verbosity":"low"},"user":"u","safety_identifier":"s",
      "prompt_cache_key":"k","service_tier":"flex","truncation":"auto","max_output_tokens":5,
      "reasoning":{"effort":"low"},"temperature":0.5)"));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(*parse_json(request->echo),
            *parse_json(
                R"({"tools":[],"background":false,"instructions":null,"max_output_tokens":5,
              "max_tool_calls":null,"metadata":{},"parallel_tool_calls":true,
              "previous_response_id":null,"prompt_cache_key":"k",
              "reasoning":{"effort":"low","summary":null},"safety_identifier":"s",
              "service_tier":"default","store":true,"temperature":0.5,
              "text":{"verbosity":"low","format":{"type":"text"}},"tool_choice":"auto",
              "top_logprobs":0,"top_p":1.0,"truncation":"auto","user":"u"})"));
}

TEST_F(ResponsesRequestTest, RefusesBadInputAndNamesTheField) {
  struct Refusal {
    std::string body;
    std::string param;
    std::string message;
  };
  const auto item = [](const std::string& text) {
    return R"({"model":"deepseek-flash","input":[)" + text + "]}";
  };
  const std::string call = R"({"type":"function_call","call_id":"c","name":"f","arguments":"{}"})";
  const std::string tool = R"("tools":[{"type":"function","name":"a"}])";
  const std::vector<Refusal> refusals = {
      {R"({"model":"deepseek-flash"})", "input", "required"},
      {R"({"model":"other","input":"x"})", "model", "does not exist"},
      {R"({"model":"deepseek-flash","input":42})", "input", "string or a list"},
      {item(""), "input", "at least one"},
      {item("7"), "input[0]", "object"},
      {item(R"({"role":"tool","content":"x"})"), "input[0].role", "developer"},
      {item(R"({"role":"user"})"), "input[0].content", "required"},
      {item(R"({"role":"user","content":[{"type":"input_audio"}]})"), "input[0].content[0].type",
       "input_audio"},
      {item(R"({"role":"user","content":[{"type":"input_image","image_url":"x"}]})"),
       "input[0].content[0].image_url", "http"},
      {item(R"({"role":"user","content":[{"type":"input_image","detail":"x"}]})"),
       "input[0].content[0].detail", "auto, low or high"},
      {item(R"({"role":"user","content":[{"type":"input_file","file_id":"f"}]})"),
       "input[0].content[0].file_id", "not supported"},
      {item(R"({"type":"item_reference","id":"x"})"), "input[0].type", "item_reference"},
      {item(R"({"type":"function_call_output","call_id":"c","output":"x"})"), "input[0].call_id",
       "No tool call found"},
      {item(call), "input", "No tool output found for function call c."},
      {item(call + "," + call), "input[1].call_id", "two calls"},
      {with(R"("conversation":{"id":"c"})"), "conversation", "not supported"},
      {with(R"("prompt":{"id":"p"})"), "prompt", "not supported"},
      {with(R"("background":true,"store":false)"), "background", "store"},
      {with(R"("include":["everything"])"), "include", "reasoning.encrypted_content"},
      {with(R"("top_logprobs":21)"), "top_logprobs", "0 to 20"},
      {with(R"("max_output_tokens":0)"), "max_output_tokens", "1 to"},
      {with(R"("temperature":3)"), "temperature", "0 to 2"},
      {with(R"("truncation":"some")"), "truncation", "disabled, auto"},
      {with(R"("service_tier":"gold")"), "service_tier", "flex"},
      {with(R"("metadata":{"a":1})"), "metadata", "16 members"},
      {with(R"("user":")" + std::string(513, 'u') + "\""), "user", "512 bytes"},
      {with(R"("reasoning":{"effort":"huge"})"), "reasoning.effort", "minimal"},
      {with(R"("reasoning":{"summary":"long"})"), "reasoning.summary", "concise"},
      {with(R"("text":{"verbosity":"huge"})"), "text.verbosity", "medium"},
      {with(R"("text":{"format":{"type":"json_schema"}})"), "text.format", "not supported"},
      {with(R"("text":{"format":{"type":"xml"}})"), "text.format.type", "json_object"},
      {with(R"("text":{"format":{"type":"json_object"}})"), "input", "word 'json'"},
      {with(R"("stream_options":{})"), "stream_options", "stream = true"},
      {with(R"("tools":[{"type":"magic"}])"), "tools[0].type", "namespace"},
      {with(R"("tools":[{"name":"a"}])"), "tools[0].type", "required"},
      {with(R"("tools":[{"type":"function","name":"a b"}])"), "tools[0].name", "1-128"},
      {with(R"("tools":[{"type":"custom","name":"a","format":{"type":"grammar"}}])"),
       "tools[0].format", "grammars"},
      {with(R"("tools":[{"type":"namespace","name":"n"}])"), "tools[0].tools", "required"},
      {with(R"("tool_choice":"required")"), "tool_choice", "tools"},
      {with(R"("tool_choice":"any")"), "tool_choice", "none, auto, required"},
      {with(tool + R"(,"tool_choice":{"type":"function","name":"b"})"), "tool_choice", "'b'"},
      {with(tool + R"(,"tool_choice":{"type":"magic"})"), "tool_choice.type", "allowed_tools"},
      {with(tool + R"(,"tool_choice":{"type":"allowed_tools","mode":"none"})"), "tool_choice.mode",
       "auto or required"},
      {with(tool + R"(,"tool_choice":"required","reasoning":{"effort":"high"})"), "tool_choice",
       "Thinking mode"},
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

TEST_F(ResponsesRequestTest, ThinkingThatIsOnByDefaultYieldsToAForcedCall) {
  const auto request =
      parse(with(R"("tools":[{"type":"function","name":"a"}],"tool_choice":"required")"));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->conversation.thinking, Thinking::kOff);
  const auto exact = parse(with(R"("reasoning":{"effort":33})"));
  EXPECT_EQ(exact->conversation.effort.exact, 33);
}

TEST(ResponsesItems, PagesGoBothWays) {
  const std::string items = R"([{"id":"a"},{"id":"b"},{"id":"c"}])";
  EXPECT_EQ(*items_page(items, {2, false, ""}),
            R"({"object":"list","first_id":"c","last_id":"b","has_more":true,)"
            R"("data":[{"id":"c"},{"id":"b"}]})");
  EXPECT_EQ(*items_page(items, {2, false, "b"}),
            R"({"object":"list","first_id":"a","last_id":"a","has_more":false,)"
            R"("data":[{"id":"a"}]})");
  EXPECT_EQ(*items_page(items, {2, true, "c"}),
            R"({"object":"list","first_id":null,"last_id":null,"has_more":false,"data":[]})");
  EXPECT_EQ(error_details(items_page(items, {2, true, "x"}).status()).param, "after");
}

TEST(ResponsesItems, ThePreviousIdOfABody) {
  EXPECT_EQ(previous_response_id(R"({"a":{"previous_response_id":"x"}})"), "");
  EXPECT_EQ(previous_response_id(R"({"previous_response_id":"resp_1_e"})"), "resp_1_e");
  EXPECT_EQ(previous_response_id(R"({"previous_response_id":7})"), "");
  EXPECT_EQ(previous_response_id("{"), "");
}

}  // namespace
}  // namespace millrace::api::recipe
