#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/recipe/prepared_request.h"
#include "api/recipe/test_deployment.h"
#include "common/json.h"

namespace millrace::api::recipe {
namespace {

class EncoderTest : public testing::Test {
 protected:
  PreparedRequest prepare(PrepareFunction function, const std::string& members) {
    auto prepared =
        function(R"({"model":"deepseek-flash",)" + members + "}", nano_.value, {"id", 0});
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return *std::move(prepared);
  }

  /// The JSON values of an event stream; the string "[DONE]" for that event.
  static std::vector<Json> events(const std::string& stream) {
    std::vector<Json> values;
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t end = stream.find("\n\n", at);
      EXPECT_EQ(stream.compare(at, 6, "data: "), 0);
      const std::string data = stream.substr(at + 6, end - at - 6);
      values.push_back(data == "[DONE]" ? Json(data) : *parse_json(data));
      at = end + 2;
    }
    return values;
  }

  test::NanoDeployment nano_;
};

Json parsed(const char* text) { return *parse_json(text); }

// Recorded from deepseek-recipe 0.1 (case chat_think); usage lacks the counts it does not send.
TEST_F(EncoderTest, ChatStreamEqualsTheRecordedOne) {
  nano_.value.usage_form = UsageForm::kFinishingChunk;
  PreparedRequest request = prepare(
      prepare_chat,
      R"("messages":[{"role":"user","content":"q"}],"stream":true,"stream_options":{"include_usage":true})");
  EXPECT_EQ(request.parsing.stage, Stage::kReasoning);
  std::string stream = request.encoder->begin();
  OutputDelta delta;
  delta.reasoning = "Let me think about this.";
  delta.text = "The answer is 42.";
  stream += request.encoder->delta(delta);
  stream +=
      request.encoder->finish(FinishReason::kStop, {.prompt_tokens = 4, .completion_tokens = 10});
  std::vector<Json> actual = events(stream);
  ASSERT_EQ(actual.size(), 5u);
  EXPECT_EQ(actual[4], "[DONE]");
  EXPECT_EQ(actual[3]["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
  actual[3]["usage"].erase("completion_tokens_details");
  for (std::size_t i = 0; i < 4; ++i) actual[i]["id"] = "mock-id";
  EXPECT_EQ(
      actual[0],
      parsed(
          R"({"id": "mock-id", "object": "chat.completion.chunk", "created": 0, "model": "deepseek-flash", "system_fingerprint": "fp-1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": null, "reasoning_content": ""}, "logprobs": null, "finish_reason": null}], "usage": null})"));
  EXPECT_EQ(
      actual[1],
      parsed(
          R"({"id": "mock-id", "object": "chat.completion.chunk", "created": 0, "model": "deepseek-flash", "system_fingerprint": "fp-1", "choices": [{"index": 0, "delta": {"content": null, "reasoning_content": "Let me think about this."}, "logprobs": null, "finish_reason": null}], "usage": null})"));
  EXPECT_EQ(
      actual[2],
      parsed(
          R"({"id": "mock-id", "object": "chat.completion.chunk", "created": 0, "model": "deepseek-flash", "system_fingerprint": "fp-1", "choices": [{"index": 0, "delta": {"content": "The answer is 42.", "reasoning_content": null}, "logprobs": null, "finish_reason": null}], "usage": null})"));
  EXPECT_EQ(
      actual[3],
      parsed(
          R"({"id": "mock-id", "object": "chat.completion.chunk", "created": 0, "model": "deepseek-flash", "system_fingerprint": "fp-1", "choices": [{"index": 0, "delta": {"content": "", "reasoning_content": null}, "logprobs": null, "finish_reason": "stop"}], "usage": {"prompt_tokens": 4, "completion_tokens": 10, "total_tokens": 14, "prompt_tokens_details": {"cached_tokens": 0}, "prompt_cache_hit_tokens": 0, "prompt_cache_miss_tokens": 4}})"));
}

TEST_F(EncoderTest, ChatUsageIsASeparateLastChunkAndOnlyWhenAskedFor) {
  const std::string messages =
      R"("messages":[{"role":"user","content":"q"}],"thinking":{"type":"disabled"},"stream":true)";
  PreparedRequest asked =
      prepare(prepare_chat, messages + R"(,"stream_options":{"include_usage":true})");
  const std::vector<Json> with = events(asked.encoder->finish(FinishReason::kLength, {4, 3, 0}));
  ASSERT_EQ(with.size(), 3u);
  EXPECT_EQ(with[0]["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(with[0]["usage"].is_null());
  EXPECT_TRUE(with[1]["choices"].empty());
  EXPECT_EQ(with[1]["usage"]["total_tokens"], 7);
  PreparedRequest not_asked = prepare(prepare_chat, messages);
  const std::vector<Json> without =
      events(not_asked.encoder->finish(FinishReason::kStop, {4, 3, 0}));
  ASSERT_EQ(without.size(), 2u);
  EXPECT_FALSE(without[0].contains("usage"));
}

TEST_F(EncoderTest, ChatBodyHasTheFieldsOfTheProtocol) {
  PreparedRequest request =
      prepare(prepare_chat,
              R"("messages":[{"role":"user","content":"q"}],"logprobs":true,"top_logprobs":1)");
  OutputDelta output;
  output.reasoning = "r";
  output.text = "A";
  const TokenId a = nano_.ids("A").front();
  output.text_tokens.push_back({a, -0.5f, {{a, -0.5f}}});
  const Json body =
      *parse_json(request.encoder->complete({{output, FinishReason::kStop}}, {4, 3, 2}));
  EXPECT_EQ(body["id"], "chatcmpl-id");
  EXPECT_EQ(body["object"], "chat.completion");
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["message"],
            parsed(R"({"role":"assistant","content":"A","reasoning_content":"r"})"));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(
      choice["logprobs"]["content"][0],
      parsed(
          R"({"token":"A","logprob":-0.5,"bytes":[65],"top_logprobs":[{"token":"A","logprob":-0.5,"bytes":[65]}]})"));
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
}

TEST_F(EncoderTest, ChoicesOfAChatStreamCarryTheirIndexAndUsageComesOnce) {
  PreparedRequest request =
      prepare(prepare_chat,
              R"("messages":[{"role":"user","content":"q"}],"thinking":{"type":"disabled"},"n":2,
         "stream":true,"stream_options":{"include_usage":true},
         "tools":[{"type":"function","function":{"name":"f"}}])");
  EXPECT_EQ(request.choice_count(), 2u);
  OutputDelta second;
  second.choice = 1;
  second.tool_events = {{ToolEvent::Kind::kBegin, "f"}, {ToolEvent::Kind::kArguments, "{}"}};
  OutputDelta first;
  first.tool_events = {{ToolEvent::Kind::kBegin, "f"}};
  Ending early(FinishReason::kToolCalls);
  early.choice = 1;
  const std::vector<Json> stream =
      events(request.encoder->begin() + request.encoder->delta(second) +
             request.encoder->delta(first) + request.encoder->end_choice(early) +
             request.encoder->finish(FinishReason::kLength, {4, 6, 0, 1}));
  std::string order;
  for (const Json& event : stream) {
    if (event.is_object() && !event["choices"].empty()) {
      order += std::to_string(event["choices"][0]["index"].get<int>());
    }
  }
  EXPECT_EQ(order,
            "01110"
            "10");
  EXPECT_EQ(stream[2]["choices"][0]["delta"]["tool_calls"][0]["id"], "call_id_1_0");
  EXPECT_EQ(stream[3]["choices"][0]["delta"]["tool_calls"][0]["index"], 0);
  EXPECT_EQ(stream[4]["choices"][0]["delta"]["tool_calls"][0]["id"], "call_id_0");
  EXPECT_EQ(stream[5]["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(stream[6]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(stream[7]["usage"]["total_tokens"], 10);
  EXPECT_EQ(stream[7]["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
  EXPECT_EQ(stream[7]["usage"]["prompt_cache_hit_tokens"], 1);
  EXPECT_EQ(stream[7]["usage"]["prompt_cache_miss_tokens"], 3);
  EXPECT_EQ(stream[8], "[DONE]");
}

TEST_F(EncoderTest, AStreamFailsWithOneErrorEventAndNoDone) {
  PreparedRequest request =
      prepare(prepare_chat, R"("messages":[{"role":"user","content":"q"}],"stream":true)");
  const std::vector<Json> failed =
      events(request.encoder->fail(error_details(absl::UnavailableError("no engine"))));
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0]["error"]["message"], "no engine");
  EXPECT_EQ(failed[0]["error"]["type"], "service_unavailable_error");
}

TEST_F(EncoderTest, ChatReturnsIdsWhenAskedTo) {
  const char* members = R"("messages":[{"role":"user","content":"q"}],"return_token_ids":true)";
  OutputDelta output;
  output.text = "x";
  output.ids = {300, 301};
  const PreparedRequest whole = prepare(prepare_chat, members);
  const Json body =
      *parse_json(whole.encoder->complete({{output, FinishReason::kStop}}, {3, 2, 0}));
  EXPECT_EQ(body["prompt_token_ids"], Json(whole.prompt));
  EXPECT_EQ(body["choices"][0]["token_ids"], Json({300, 301}));
  const PreparedRequest streamed = prepare(prepare_chat, members);
  const std::vector<Json> stream =
      events(streamed.encoder->begin() + streamed.encoder->delta(output));
  ASSERT_EQ(stream.size(), 3u);
  EXPECT_EQ(stream[0]["prompt_token_ids"], Json(streamed.prompt));
  EXPECT_EQ(stream[1]["choices"][0]["token_ids"], Json({300, 301}));
  EXPECT_EQ(stream[2]["choices"][0]["delta"]["content"], "x");
}

TEST_F(EncoderTest, CompletionReturnsIdsWhenAskedTo) {
  PreparedRequest request =
      prepare(prepare_completion, R"("prompt":[5,6,7],"echo_ids":true,"logprobs":2)");
  OutputDelta output;
  output.text = "AB";
  const TokenId a = nano_.ids("A").front();
  const TokenId b = nano_.ids("B").front();
  output.ids = {a, b};
  output.text_tokens = {{a, -0.25f, {{a, -0.25f}, {b, -2.f}}}, {b, -1.f, {{a, -0.5f}, {b, -1.f}}}};
  const Json body =
      *parse_json(request.encoder->complete({{output, FinishReason::kLength}}, {3, 2, 0}));
  EXPECT_EQ(body["object"], "text_completion");
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["text"], "AB");
  EXPECT_EQ(choice["prompt_token_ids"], Json({5, 6, 7}));
  EXPECT_EQ(choice["token_ids"], Json({a, b}));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["logprobs"], parsed(R"({"tokens":["A","B"],"token_logprobs":[-0.25,-1.0],
                       "top_logprobs":[{"A":-0.25,"B":-2.0},{"A":-0.5,"B":-1.0}],"text_offset":[0,1]})"));
}

TEST_F(EncoderTest, CompletionStreamCarriesPromptIdsOnceAndEveryTokenId) {
  PreparedRequest request =
      prepare(prepare_completion, R"("prompt":[5,6],"echo_ids":true,"stream":true)");
  OutputDelta held;
  held.ids = {300};  // its text is still held back
  OutputDelta rest;
  rest.text = "xy";
  rest.ids = {301};
  const std::vector<Json> stream = events(request.encoder->begin() + request.encoder->delta(held) +
                                          request.encoder->delta(rest) +
                                          request.encoder->finish(FinishReason::kStop, {2, 2, 0}));
  ASSERT_EQ(stream.size(), 5u);
  EXPECT_EQ(stream[0]["choices"][0]["prompt_token_ids"], Json({5, 6}));
  EXPECT_EQ(stream[1]["choices"][0]["token_ids"], Json::array({300}));
  EXPECT_EQ(stream[2]["choices"][0]["text"], "xy");
  EXPECT_EQ(stream[2]["choices"][0]["token_ids"], Json::array({301}));
  EXPECT_EQ(stream[3]["choices"][0]["finish_reason"], "stop");
}

}  // namespace
}  // namespace millrace::api::recipe
