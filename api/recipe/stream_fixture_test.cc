#include <gtest/gtest.h>

#include "api/recipe/output_lab_test.h"
#include "api/recipe/prepared_request.h"
#include "api/recipe/test_fixtures.h"
#include "common/str_cat.h"

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

/// The message that a client puts together from a stream, and how it ended.
Json merged_message(const std::vector<Json>& chunks) {
  Json message = {
      {"reasoning", ""}, {"content", ""}, {"calls", Json::array()}, {"finish", nullptr}};
  const auto append = [](Json& to, const Json& from, const char* key) {
    if (from.contains(key) && from[key].is_string()) {
      to = to.get<std::string>() + from[key].get<std::string>();
    }
  };
  for (const Json& chunk : chunks) {
    if (chunk["choices"].empty()) continue;
    const Json& choice = chunk["choices"][0];
    const Json& delta = choice["delta"];
    append(message["reasoning"], delta, "reasoning_content");
    append(message["content"], delta, "content");
    for (const Json& piece : delta.value("tool_calls", Json::array())) {
      const auto index = piece["index"].get<std::size_t>();
      EXPECT_LE(index, message["calls"].size());
      if (index == message["calls"].size()) {
        EXPECT_EQ(piece["type"], "function");
        EXPECT_NE(piece["id"], "");
        message["calls"].push_back({{"name", piece["function"]["name"]}, {"arguments", ""}});
      }
      append(message["calls"][index]["arguments"], piece["function"], "arguments");
    }
    if (choice.contains("finish_reason") && !choice["finish_reason"].is_null()) {
      message["finish"] = choice["finish_reason"];
    }
  }
  for (Json& call : message["calls"]) {
    call["arguments"] = *parse_json(call["arguments"].get<std::string>());
  }
  return message;
}

/// What a model writes to say this.
std::string written(const Json& message) {
  std::string text;
  const auto reasoning = message["reasoning"].get<std::string>();
  if (!reasoning.empty()) text.append(reasoning).append("</think>");
  text.append(message["content"].get<std::string>());
  if (message["calls"].empty()) return text;
  text.append("\n\n<｜DSML｜ calls>");
  for (const Json& call : message["calls"]) {
    text.append(str_cat("\n<｜DSML｜ invoke name=\"", call["name"].get<std::string>(), "\">\n"));
    for (const auto& [key, value] : call["arguments"].items()) {
      text.append(str_cat("<｜DSML｜ parameter name=\"", key, "\" string=\"true\">",
                          value.get<std::string>(), "</｜DSML｜ parameter>\n"));
    }
    text.append("</｜DSML｜ invoke>");
  }
  return text.append("\n</｜DSML｜ calls>");
}

// What agents put together from our streams is what they put together from these.
TEST(StreamFixture, AgentTraces) {
  const test::OutputLab lab;
  for (const char* name : {"fragmented-tool", "parallel-tools", "text", "thinking-tool"}) {
    SCOPED_TRACE(name);
    const Json expected = merged_message(
        test::events_of(str_cat(test::read_fixture(str_cat("agent-sse/", name, ".sse")), "\n")));
    Json body = *parse_json(R"({"messages":[{"role":"user","content":"q"}],"stream":true})");
    body["model"] = lab.nano().value.model_id;
    body["thinking"]["type"] =
        expected["reasoning"].get<std::string>().empty() ? "disabled" : "enabled";
    for (const char* tool : {"list_directory", "read_file"}) {
      body["tools"].push_back({{"type", "function"}, {"function", {{"name", tool}}}});
    }
    const auto prepared = prepare_chat(body.dump(), lab.nano().value, {"7", 0});
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    const Json chunks = {{{"kind", "text"}, {"content", written(expected)}, {"content_tokens", 1}}};
    EXPECT_EQ(merged_message(test::events_of(lab.stream(*prepared, chunks))), expected);
  }
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
