#include <gtest/gtest.h>

#include "api/recipe/output_lab_test.h"
#include "api/recipe/prepared_request.h"
#include "api/recipe/test_fixtures.h"

namespace millrace::api::recipe {
namespace {

/// The arguments that a chunk brings, or nullptr.
Json* arguments_of(Json& chunk) {
  Json& choice = chunk["choices"][0];
  if (!choice["delta"].contains("tool_calls")) return nullptr;
  Json& call = choice["delta"]["tool_calls"][0];
  return call.contains("id") ? nullptr : &call["function"]["arguments"];
}

// Recorded from deepseek-recipe; pieces of arguments may be cut elsewhere, and the count of
// reasoning tokens is an addition of ours.
TEST(StreamFixture, ChatCompletions) {
  const test::OutputLab lab;
  Deployment deployment = lab.nano().value;
  deployment.usage_form = UsageForm::kFinishingChunk;
  int count = 0;
  for (const Json& line : test::read_fixture_lines("stream_cases.jsonl")) {
    if (line["protocol"] != "chat_completions") continue;
    SCOPED_TRACE(line["name"].get<std::string>());
    Json body = line["body"];
    body["model"] = deployment.model_id;
    body["stream"] = true;
    body["stream_options"]["include_usage"] = true;
    const auto prepared = prepare_chat(body.dump(), deployment, {"mock-id", 0});
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    std::vector<Json> actual = test::events_of(lab.stream(*prepared, line["chunks"]));
    for (Json& event : actual) {
      EXPECT_EQ(event["id"], "chatcmpl-mock-id");
      event["id"] = "mock-id";
      if (event["usage"].is_object()) event["usage"].erase("completion_tokens_details");
    }
    EXPECT_EQ(test::merged(actual, arguments_of), test::merged(line["events"], arguments_of));
    ++count;
  }
  EXPECT_EQ(count, 6);
}

// The whole answer holds what the stream brings.
TEST(StreamFixture, ACallInTheWholeAnswer) {
  const test::OutputLab lab;
  auto prepared = prepare_chat(
      R"({"model":"deepseek-flash","messages":[{"role":"user","content":"q"}],
          "thinking":{"type":"disabled"},"tools":[{"type":"function","function":{"name":"f"}}]})",
      lab.nano().value, {"7", 0});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const std::string call = "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>\n";
  OutputParser parser(*lab.nano().value.tokenizer, lab.nano().value.control, prepared->parsing);
  OutputDelta output;
  for (TokenId id : lab.ids(call + "<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter")) {
    parser.push({id, 0, {}}, output);
  }
  const FinishReason reason = parser.finish(FinishReason::kStop, output);
  const Json body = *parse_json(prepared->encoder->complete({{output, reason}}, {}));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");  // the second call was cut off
  EXPECT_EQ(body["choices"][0]["message"],
            *parse_json(R"({"role":"assistant","content":null,"tool_calls":[{"id":"call_7_0",
                            "type":"function","function":{"name":"f","arguments":"{}"}}]})"));
}

}  // namespace
}  // namespace millrace::api::recipe
