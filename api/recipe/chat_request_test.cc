#include "api/recipe/chat_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/recipe/prepared_request.h"
#include "api/recipe/request_error.h"
#include "api/recipe/test_deployment.h"
#include "common/json.h"

namespace millrace::api::recipe {
namespace {

using testing::HasSubstr;

/// A valid body with one more member, given as JSON text.
std::string with(const std::string& member) {
  return R"({"model":"m","messages":[{"role":"user","content":"x"}])" +
         (member.empty() ? "" : "," + member) + "}";
}

/// The member `tools` with one function of these members.
std::string tool(const std::string& members) {
  return R"("tools":[{"type":"function","function":{)" + members + "}}]";
}

/// A body whose first message calls `f` as c1, followed by these messages.
std::string calls(const std::string& messages) {
  return R"({"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"c1","type":"function",)"
         R"("function":{"name":"f","arguments":"{}"}}]},)" +
         messages + "]}";
}

absl::StatusOr<ChatRequest> parse(const std::string& body, Thinking thinking = Thinking::kOn) {
  return parse_chat_request(body, "m", 2048, thinking);
}

struct Refusal {
  std::string body;
  std::string param;
  std::string message;  // part of it
};

TEST(ChatRequest, RefusesBadInputAndNamesTheField) {
  const std::vector<Refusal> refusals = {
      {R"({"model": )", "", "invalid JSON"},
      {R"([1])", "", "JSON object"},
      {R"({"messages":[{"role":"user","content":"x"}]})", "model", "required"},
      {R"({"model":"m"})", "messages", "required"},
      {R"({"model":"m","messages":{}})", "messages", "list"},
      {R"({"model":"m","messages":[]})", "messages", "Empty input messages"},
      {R"({"model":"m","messages":[3]})", "messages[0]", "object"},
      {R"({"model":"m","messages":[{"content":"x"}]})", "messages[0].role", "required"},
      {R"({"model":"m","messages":[{"role":"wizard","content":"x"}]})", "messages[0].role",
       "wizard"},
      {R"({"model":"m","messages":[{"role":"user","content":"x"},{"role":"tool","tool_call_id":"c1","content":"r"}]})",
       "messages[1].role", "must be a response to a preceding message with 'tool_calls'"},
      {R"({"model":"m","messages":[{"role":"user"}]})", "messages[0].content", "required"},
      {R"({"model":"m","messages":[{"role":"user","content":7}]})", "messages[0].content",
       "string"},
      {R"({"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})",
       "messages[0].content[0].image_url.url", "http or https"},
      {R"({"model":"m","messages":[{"role":"user","content":[{"type":"audio"}]}]})",
       "messages[0].content[0].type", "must be text, image_url or file, is \"audio\""},
      {R"({"model":"m","messages":[{"role":"user","content":[{"type":"file","file":{"file_id":"f"}}]}]})",
       "messages[0].content[0].file.file_id", "not supported"},
      {R"({"model":"m","messages":[{"role":"system","content":[{"type":"image_url","image_url":{"url":"http://a"}}]}]})",
       "messages[0].content[0].type", "user and tool messages"},
      {R"({"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://a","detail":"x"}}]}]})",
       "messages[0].content[0].image_url.detail", "auto, low or high"},
      {R"({"model":"m","messages":[{"role":"user","content":[{"type":"text"}]}]})",
       "messages[0].content[0].text", "required"},
      {R"({"model":"m","messages":[{"role":"assistant","content":"x","tool_calls":[]}]})",
       "messages[0].tool_calls", "at least one"},
      {R"({"model":"m","messages":[{"role":"assistant","content":"x","prefix":true},{"role":"user","content":"x"}]})",
       "messages[0].prefix", "last message"},
      {with(R"("temperature":2.5)"), "temperature", "0 to 2"},
      {with(R"("temperature":"hot")"), "temperature", "number"},
      {with(R"("top_p":0)"), "top_p", "greater than 0"},
      {with(R"("top_p":1.5)"), "top_p", "0 to 1"},
      {with(R"("top_k":-2)"), "top_k", "-1"},
      {with(R"("top_k":1.5)"), "top_k", "integer"},
      {with(R"("min_p":-0.1)"), "min_p", "0 to 1"},
      {with(R"("presence_penalty":2.1)"), "presence_penalty", "-2 to 2"},
      {with(R"("frequency_penalty":-3)"), "frequency_penalty", "-2 to 2"},
      {with(R"("repetition_penalty":0)"), "repetition_penalty", "0.01"},
      {with(R"("max_tokens":0)"), "max_tokens", "1 to"},
      {with(R"("max_completion_tokens":-5)"), "max_completion_tokens", "1 to"},
      {with(R"("max_tokens":18446744073709551615)"), "max_tokens", "1 to"},
      {with(R"("stop":[1])"), "stop", "string"},
      {with(R"("stop":"")"), "stop", "1 to 1024"},
      {with(R"("stop":["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"])"),
       "stop", "at most 16"},
      {with(R"("logit_bias":{"99999":1})"), "logit_bias", "99999"},
      {with(R"("logit_bias":{"x":1})"), "logit_bias", "\"x\""},
      {with(R"("logit_bias":{"5":101})"), "logit_bias", "100"},
      {with(R"("seed":1.5)"), "seed", "integer"},
      {with(R"("n":0)"), "n", "`n` must be from 1 to 16, is 0"},
      {with(R"("n":17)"), "n", "`n` must be from 1 to 16, is 17"},
      {with(R"("stream":"yes")"), "stream", "true or false"},
      {with(R"("stream_options":{"include_usage":true})"), "stream_options",
       "stream_options should be set along with stream = true"},
      {with(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs", "0 to 20"},
      {with(R"("top_logprobs":2)"), "top_logprobs", "`logprobs` to be true"},
      {with(R"("tools":[{"type":"function"}])"), "tools[0].function", "required"},
      {with(R"("tools":{})"), "tools", "list"},
      {with(R"("tools":[1])"), "tools[0]", "object"},
      {with(R"("tools":[{"type":"custom"}])"), "tools[0].type", "function"},
      {with(tool(R"("name":"a","parameters":[])")), "tools[0].function.parameters", "object"},
      {with(tool(R"("name":"a","parameters":{"type":"string"})")), "tools[0].function.parameters",
       "must be \"object\""},
      {with(tool(R"("name":"a","strict":1)")), "tools[0].function.strict", "true or false"},
      {with(tool(R"("name":"a","description":1)")), "tools[0].function.description", "string"},
      {with(tool(R"("name":"a")") + R"(,"tool_choice":"sometimes")"), "tool_choice", "required"},
      {with(tool(R"("name":"a")") + R"(,"tool_choice":{"type":"custom"})"), "tool_choice.type",
       "function"},
      {with(tool(R"("name":"a")") + R"(,"parallel_tool_calls":1)"), "parallel_tool_calls", "true"},
      {calls(R"({"role":"user","content":"x"})"), "messages[0].tool_calls", "insufficient"},
      {calls(R"({"role":"tool","content":"x"})"), "messages[1].tool_call_id", "required"},
      {calls(R"({"role":"tool","tool_call_id":"c1"})"), "messages[1].content", "required"},
      {calls(
           R"({"role":"tool","tool_call_id":"c1","content":"x"},{"role":"tool","tool_call_id":"c1","content":"x"})"),
       "messages[2].tool_call_id", "twice"},
      {R"({"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"c1","function":{"name":"f"}}]}]})",
       "messages[0].tool_calls[0].function.arguments", "required"},
      {R"({"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"","function":{"name":"f","arguments":""}}]}]})",
       "messages[0].tool_calls[0].id", "1 to 512"},
      {with(R"("tools":[])"), "tools", "empty array"},
      {with(R"("seed":1,"temperature":0,"seed":1)"), "", "\"seed\" occurs twice"},
      {with(R"("tool_choice":"required")"), "tool_choice", "`tools` are given"},
      {with(R"("response_format":{"type":"json_object"})"), "messages", "the word 'json'"},
      {with(R"("response_format":{"type":"json_schema"})"), "response_format", "not supported"},
      {with(R"("response_format":{"type":"regex"})"), "response_format.type", "json_object"},
      {with(R"("functions":[])"), "functions", "not supported"},
      {with(R"("guided_json":{})"), "guided_json", "not supported"},
      {with(R"("guided_regex":"a*")"), "guided_regex", "not supported"},
      {with(R"("structured_outputs":{"choice":["a"]})"), "structured_outputs", "not supported"},
      {with(R"("ebnf":"root ::= x")"), "ebnf", "not supported"},
      {with(R"("allowed_token_ids":[5])"), "allowed_token_ids", "not supported"},
      {with("\"user\":\"a\\u0000b\""), "", "NUL"},
      {with("\"user\":\"\\ud800\""), "", "invalid JSON"},
      {with("\"user\":\"\xff\""), "", "invalid JSON"},
      {with("\"user\":" + std::string(600, '[') + std::string(600, ']')), "", "nested deeper"},
      {with(R"("thinking":{"type":"sometimes"})"), "thinking.type", "enabled or disabled"},
      {with(R"("reasoning_effort":0)"), "reasoning_effort", "1 to 100"},
      {with(R"("reasoning_effort":101)"), "reasoning_effort", "1 to 100"},
      {with(R"("reasoning_effort":true)"), "reasoning_effort", "none, minimal"},
      {with(R"("reasoning_effort":"huge")"), "reasoning_effort", "none, minimal"},
      {with(R"("metadata":3)"), "metadata", "object"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.body);
    const auto request = parse(refusal.body);
    ASSERT_FALSE(request.ok());
    const ErrorDetails details = error_details(request.status());
    EXPECT_EQ(details.status_code, absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(details.type, "invalid_request_error");
    EXPECT_EQ(details.param, refusal.param);
    EXPECT_THAT(details.message, HasSubstr(refusal.message));
  }
}

TEST(ChatRequest, ABackslashBeforeWhatLooksLikeANulIsNone) {
  EXPECT_TRUE(parse(with("\"user\":\"a\\\\u0000b\"")).ok());
}

TEST(ChatRequest, RefusesAnotherModelAsNotFound) {
  const auto request = parse_chat_request(with(""), "nano", 2048, Thinking::kOn);
  ASSERT_FALSE(request.ok());
  const ErrorDetails details = error_details(request.status());
  EXPECT_EQ(details.status_code, absl::StatusCode::kNotFound);
  EXPECT_EQ(details.code, "model_not_found");
  const auto body = parse_json(error_body(details));
  ASSERT_TRUE(body.ok());
  EXPECT_EQ((*body)["error"]["param"], "model");
  EXPECT_EQ((*body)["error"]["type"], "invalid_request_error");
}

TEST(ChatRequest, ReadsEveryField) {
  const auto request = parse(with(
      R"("temperature":0,"top_p":0.5,"top_k":40,"min_p":0.1,"presence_penalty":1,"frequency_penalty":-1,
         "repetition_penalty":1.1,"logit_bias":{"5":-100,"7":2.5},"seed":42,"stop":["a","b"],
         "max_tokens":7,"max_completion_tokens":9,"logprobs":true,"top_logprobs":3,"ignore_eos":true,
         "stream":true,"stream_options":{"include_usage":true},"user":"u","metadata":{"k":"v"},
         "tool_choice":"auto","response_format":{"type":"text"},"unknown_field":1,"n":1,
         "reasoning_effort":33,"stop_token_ids":[3,2047],"min_tokens":4,"no_stop_trim":true,
         "return_token_ids":true,"use_beam_search":false)"));
  ASSERT_TRUE(request.ok()) << request.status();
  const Sampling& s = request->sampling;
  EXPECT_EQ(s.temperature, 0);
  EXPECT_EQ(s.top_p, 0.5);
  EXPECT_EQ(s.top_k, 40u);
  EXPECT_EQ(s.min_p, 0.1);
  EXPECT_EQ(s.presence_penalty, 1);
  EXPECT_EQ(s.frequency_penalty, -1);
  EXPECT_EQ(s.repetition_penalty, 1.1);
  EXPECT_EQ(s.logit_bias, (std::map<TokenId, float>{{5, -100.f}, {7, 2.5f}}));
  EXPECT_EQ(s.seed, 42u);
  EXPECT_EQ(s.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(s.max_tokens, 9u);
  EXPECT_TRUE(s.return_logprobs);
  EXPECT_EQ(s.top_logprobs, 3u);
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_EQ(s.stop_tokens, (std::vector<TokenId>{3, 2047}));
  EXPECT_EQ(s.min_tokens, 4u);
  EXPECT_TRUE(s.keeps_stop);
  EXPECT_TRUE(request->return_token_ids);
  EXPECT_TRUE(request->stream.is_streamed);
  EXPECT_TRUE(request->stream.include_usage);
  EXPECT_EQ(request->conversation.effort.exact, 33);
}

TEST(ChatRequest, ReadsWhatOtherServersCallOtherwise) {
  const auto conversation = [](const std::string& members) {
    const auto request = parse(with(members));
    EXPECT_TRUE(request.ok()) << request.status();
    return request.ok() ? request->conversation : Conversation();
  };
  EXPECT_EQ(conversation(R"("chat_template_kwargs":{"thinking":false})").thinking, Thinking::kOff);
  EXPECT_EQ(conversation(R"("chat_template_kwargs":{"enable_thinking":false,"x":1})").thinking,
            Thinking::kOff);
  EXPECT_EQ(conversation(R"("chat_template_kwargs":{"reasoning_effort":"max"})").effort.name,
            Effort::Name::kMax);
  const auto own =
      conversation(R"("thinking":{"type":"enabled"},"chat_template_kwargs":{"thinking":false})");
  EXPECT_EQ(own.thinking, Thinking::kOn);
  const auto continued = parse(
      R"({"model":"m","messages":[{"role":"user","content":"Hi"},
          {"role":"assistant","content":"He"}],"thinking":{"type":"disabled"},
          "continue_final_message":true,"add_generation_prompt":false})");
  ASSERT_TRUE(continued.ok()) << continued.status();
  EXPECT_TRUE(continued->conversation.messages.back().is_prefix);
}

TEST(ChatRequest, RefusesWhatWouldChangeTheAnswerIfItWereDropped) {
  for (const char* field :
       {R"("chat_template_kwargs":{"thinking":"no"})", R"("chat_template_kwargs":1)",
        R"("continue_final_message":true)", R"("add_generation_prompt":false)",
        R"("separate_reasoning":false)", R"("use_beam_search":true)", R"("bad_words":["a"])",
        R"("prompt_logprobs":1)", R"("allowed_token_ids":[1])", R"("stop_token_ids":[2048])",
        R"("stop_token_ids":7)", R"("min_tokens":8,"max_tokens":7)"}) {
    const auto request = parse(with(field));
    ASSERT_FALSE(request.ok()) << field;
    const std::string name = std::string(field).substr(1, std::string(field).find('"', 1) - 1);
    EXPECT_NE(error_details(request.status()).param.find(name), std::string::npos) << field;
  }
}

TEST(ChatRequest, ReadsToolsWithExactNumbers) {
  const auto request = parse(with(
      R"("tools":[{"type":"function","function":{"name":"a","description":"A","strict":true,
         "parameters":{"type":"object","properties":{"n":{"maximum":123456789012345678901,
         "minimum":-1e400,"multipleOf":1e-5}}}}},{"type":"function","function":{"name":"b"}}],
         "parallel_tool_calls":false,"tool_choice":{"type":"function","function":{"name":"b"}})"));
  ASSERT_TRUE(request.ok()) << request.status();
  const Conversation& conversation = request->conversation;
  ASSERT_EQ(conversation.tools.size(), 2u);
  EXPECT_EQ(conversation.tools[0].parameters,
            R"({"type": "object", "properties": {"n": {"maximum": 123456789012345678901, )"
            R"("minimum": -1e400, "multipleOf": 1e-05}}})");
  EXPECT_EQ(conversation.tools[0].properties, std::vector<std::string>{"n"});
  EXPECT_TRUE(conversation.tools[0].is_strict);
  EXPECT_EQ(conversation.tools[1].parameters, "{}");
  EXPECT_EQ(conversation.tool_choice.name, "b");
  EXPECT_EQ(conversation.thinking, Thinking::kOff);  // it was on by default only
  EXPECT_EQ(request->parallel_calls, ParallelCalls::kOnlyOne);
}

TEST(ChatRequest, NullCountsAsAbsent) {
  const auto request = parse(with(
      R"("temperature":null,"stop":null,"max_tokens":null,"stream":null,"stream_options":null,"tools":null,
         "response_format":null,"seed":null,"logit_bias":null,"thinking":null,"reasoning_effort":null)"));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->sampling.temperature, 1);
  EXPECT_FALSE(request->sampling.max_tokens.has_value());
  EXPECT_FALSE(request->sampling.seed.has_value());
}

TEST(ChatRequest, ThinkingWinsOverEffortAndEffortOverTheDefault) {
  const auto mode = [](const std::string& member, Thinking by_default) {
    const auto request = parse(with(member), by_default);
    EXPECT_TRUE(request.ok()) << request.status();
    return request->conversation.thinking;
  };
  EXPECT_EQ(mode("", Thinking::kOn), Thinking::kOn);
  EXPECT_EQ(mode("", Thinking::kOff), Thinking::kOff);
  EXPECT_EQ(mode(R"("reasoning_effort":"none")", Thinking::kOn), Thinking::kOff);
  EXPECT_EQ(mode(R"("reasoning_effort":"low")", Thinking::kOff), Thinking::kOn);
  EXPECT_EQ(mode(R"("thinking":{"type":"enabled"},"reasoning_effort":"none")", Thinking::kOff),
            Thinking::kOn);
  EXPECT_EQ(mode(R"("thinking":{"type":"disabled"},"reasoning_effort":"max")", Thinking::kOn),
            Thinking::kOff);
}

TEST(CompletionRequest, RefusesBadInputAndNamesTheField) {
  const test::NanoDeployment nano;
  const std::vector<Refusal> refusals = {
      {R"({"model":"deepseek-flash"})", "prompt", "required"},
      {R"({"model":"deepseek-flash","prompt":[]})", "prompt", "empty"},
      {R"({"model":"deepseek-flash","prompt":3})", "prompt", "string"},
      {R"({"model":"deepseek-flash","prompt":[1,99999]})", "prompt[1]", "token id"},
      {R"({"model":"deepseek-flash","prompt":[1,-1]})", "prompt[1]", "token id"},
      {R"({"model":"deepseek-flash","prompt":"x","best_of":3})", "best_of", "must equal"},
      {R"({"model":"deepseek-flash","prompt":"x","logprobs":21})", "logprobs", "0 to 20"},
      {R"({"model":"deepseek-flash","prompt":"x","temperature":-1})", "temperature", "0 to 2"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.body);
    const auto prepared = prepare_completion(refusal.body, nano.value, {"1", 0});
    ASSERT_FALSE(prepared.ok());
    const ErrorDetails details = error_details(prepared.status());
    EXPECT_EQ(details.param, refusal.param);
    EXPECT_THAT(details.message, HasSubstr(refusal.message));
  }
}

TEST(CompletionRequest, TextIsPlainUnlessSpecialSpellingsAreAskedFor) {
  const test::NanoDeployment nano;
  const auto prompt = [&](const std::string& members) {
    const auto prepared =
        prepare_completion(R"({"model":"deepseek-flash",)" + members + "}", nano.value, {"1", 0});
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return prepared->prompt;
  };
  std::vector<TokenId> plain{nano.value.begin_of_sequence};
  const auto text = *nano.value.tokenizer->encode_text("<｜User｜>Hi");
  plain.insert(plain.end(), text.begin(), text.end());
  EXPECT_EQ(prompt(R"("prompt":"<｜User｜>Hi")"), plain);
  EXPECT_EQ(prompt(R"("prompt":"<｜User｜>Hi","parse_special":true)"), nano.ids("<｜User｜>Hi"));
  EXPECT_EQ(prompt(R"("prompt":[5,6,7])"), (std::vector<TokenId>{5, 6, 7}));
  EXPECT_EQ(prompt(R"("prompt":[[5,6,7]])"), (std::vector<TokenId>{5, 6, 7}));
}

}  // namespace
}  // namespace millrace::api::recipe
