#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/recipe/output_lab_test.h"
#include "api/recipe/prepared_request.h"
#include "api/recipe/responses_encoder.h"
#include "api/recipe/responses_input.h"
#include "api/recipe/test_fixtures.h"

namespace millrace::api::recipe {
namespace {

using testing::HasSubstr;

/// What deepseek-recipe sends of a response; ours has what typed clients expect besides.
void keep_recorded_members(Json& response) {
  const Json given = response;
  response = Json::object();
  for (const char* name : {"id", "object", "created_at", "model", "status", "completed_at", "error",
                           "incomplete_details", "output", "usage"}) {
    ASSERT_TRUE(given.contains(name)) << name;
    response[name] = given[name];
  }
}

/// The piece of arguments that an event brings, or nullptr.
Json* arguments_of(Json& event) {
  return event["type"] == "response.function_call_arguments.delta" ? &event["delta"] : nullptr;
}

/// Numbers count through, whatever pieces arguments are cut into.
void check_and_drop_numbers(std::vector<Json>& events) {
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["sequence_number"], i);
    events[i].erase("sequence_number");
  }
}

// Recorded from deepseek-recipe; a response's id names its protocol here.
TEST(ResponsesFixture, Streams) {
  const test::OutputLab lab;
  const Deployment& deployment = lab.nano().value;
  int count = 0;
  for (const Json& line : test::read_fixture_lines("stream_cases.jsonl")) {
    if (line["protocol"] != "responses") continue;
    SCOPED_TRACE(line["name"].get<std::string>());
    Json body = line["body"];
    body["model"] = deployment.model_id;
    body["stream"] = true;
    const auto prepared = prepare_responses(body.dump(), deployment, {"mock-id", 0});
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    std::vector<Json> actual = test::events_of(lab.stream(*prepared, line["chunks"]));
    std::vector<Json> expected = line["events"];
    check_and_drop_numbers(actual);
    check_and_drop_numbers(expected);
    for (Json& event : actual) {
      if (!event.contains("response")) continue;
      EXPECT_EQ(event["response"]["id"], "resp_mock-id");
      event["response"]["id"] = "mock-id";
      keep_recorded_members(event["response"]);
    }
    EXPECT_EQ(test::merged(actual, arguments_of), test::merged(expected, arguments_of));
    ++count;
  }
  EXPECT_EQ(count, 2);
}

class ResponsesTest : public testing::Test {
 protected:
  PreparedResponse prepare(const std::string& members, const std::string& owner = "") {
    const ResponsesContext context{.owner = owner,
                                   .earlier_items = std::nullopt,
                                   .now_seconds = [] { return std::int64_t{11}; }};
    auto prepared = prepare_response(R"({"model":"deepseek-flash","input":"q",)" + members + "}",
                                     lab_.nano().value, {"7", 5}, context);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return *std::move(prepared);
  }

  /// The events of an output in one delta; `types_` gets their types.
  std::vector<Json> stream(PreparedResponse& prepared, const OutputDelta& output,
                           const Ending& ending) {
    std::string written = prepared.encoder->begin();
    written += prepared.encoder->delta(output);
    written += prepared.encoder->finish(ending, {3, 2, 1, 1});
    const std::vector<Json> events = test::events_of(written);
    types_.clear();
    for (const Json& event : events) {
      types_ += event["type"].get<std::string>().substr(9);
      types_ += ' ';
    }
    return events;
  }

  static OutputDelta call_of(const std::string& name, const std::vector<std::string>& pieces,
                             bool has_ended) {
    OutputDelta output;
    output.tool_events.push_back({ToolEvent::Kind::kBegin, name});
    for (const std::string& piece : pieces) {
      output.tool_events.push_back({ToolEvent::Kind::kArguments, piece});
    }
    if (has_ended) output.tool_events.push_back({ToolEvent::Kind::kEnd, ""});
    return output;
  }

  test::OutputLab lab_;
  std::string types_;
};

TEST_F(ResponsesTest, AWholeAnswerIsWhatTheStreamEndsWith) {
  OutputDelta output = call_of("f", {"{\"n\": 1e400", "}"}, true);
  output.reasoning = "r";
  output.text = "t";
  PreparedResponse plain = prepare(R"("store":false,"metadata":{"a":"b"})");
  PreparedResponse streamed = prepare(R"("store":false,"metadata":{"a":"b"})");
  const std::string body =
      plain.encoder->complete({{output, FinishReason::kToolCalls}}, {3, 2, 1, 1});
  const std::vector<Json> events = stream(streamed, output, FinishReason::kToolCalls);
  EXPECT_EQ(events.back()["response"], *parse_json(body));
  EXPECT_EQ(streamed.encoder->response(), body);
  const Json response = *parse_json(body);
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["created_at"], 5);
  EXPECT_EQ(response["completed_at"], 11);
  EXPECT_EQ(response["metadata"], *parse_json(R"({"a":"b"})"));
  EXPECT_EQ(response["store"], false);
  EXPECT_EQ(response["usage"],
            *parse_json(R"({"input_tokens":3,"input_tokens_details":{"cached_tokens":1},
                            "output_tokens":2,"output_tokens_details":{"reasoning_tokens":1},
                            "total_tokens":5})"));
  EXPECT_EQ(response["output"], *parse_json(
                                    R"([{"type":"reasoning","id":"rs_7_0","status":"completed",
               "content":[{"type":"reasoning_text","text":"r"}],"summary":[]},
              {"type":"message","id":"msg_7_1","status":"completed","role":"assistant",
               "phase":"commentary","content":[{"type":"output_text","annotations":[],
               "logprobs":[],"text":"t"}]},
              {"type":"function_call","id":"fc_7_2","status":"completed","call_id":"call_7_2",
               "name":"f","arguments":"{\"n\": 1e400}"}])"));
}

TEST_F(ResponsesTest, ACutCallIsIncompleteAndNeverDone) {
  PreparedResponse prepared = prepare(R"("stream":true)");
  const std::vector<Json> events =
      stream(prepared, call_of("f", {"{\"a\": \"b"}, false), FinishReason::kLength);
  EXPECT_EQ(types_,
            "created in_progress output_item.added function_call_arguments.delta "
            "output_item.done incomplete ");
  const Json& response = events.back()["response"];
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  EXPECT_EQ(response["output"][0]["arguments"], "{\"a\": \"b");
}

TEST_F(ResponsesTest, ACutTextIsClosedAsIncomplete) {
  PreparedResponse prepared = prepare(R"("stream":true)");
  OutputDelta output;
  output.text = "t";
  const std::vector<Json> events = stream(prepared, output, FinishReason::kLength);
  EXPECT_EQ(types_,
            "created in_progress output_item.added content_part.added output_text.delta "
            "output_text.done content_part.done output_item.done incomplete ");
  EXPECT_EQ(events[events.size() - 2]["item"]["status"], "incomplete");
}

TEST_F(ResponsesTest, CustomToolsGetTheirTextAndNamespacesTheirName) {
  PreparedResponse prepared = prepare(
      R"("tools":[{"type":"custom","name":"apply_patch"},{"type":"namespace","name":"n",
         "tools":[{"type":"function","name":"f"}]}])");
  const OutputDelta custom = call_of("apply_patch", {"{\"input\": \"a\\", "nb\"", "}"}, true);
  std::vector<Json> events = test::events_of(prepared.encoder->begin());
  events = test::events_of(prepared.encoder->delta(custom));
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[1]["type"], "response.custom_tool_call_input.delta");
  EXPECT_EQ(events[1]["delta"], "a");
  EXPECT_EQ(events[2]["delta"], "\nb");
  EXPECT_EQ(events[3]["type"], "response.custom_tool_call_input.done");
  EXPECT_EQ(events[3]["input"], "a\nb");
  EXPECT_EQ(events[4]["item"],
            *parse_json(R"({"type":"custom_tool_call","id":"ctc_7_0","status":"completed",
                            "call_id":"call_7_0","name":"apply_patch","input":"a\nb"})"));
  events = test::events_of(prepared.encoder->delta(call_of("n::f", {"{}"}, true)));
  EXPECT_EQ(events.back()["item"],
            *parse_json(R"({"type":"function_call","id":"fc_7_1","status":"completed",
                            "call_id":"call_7_1","name":"f","namespace":"n","arguments":"{}"})"));
}

TEST_F(ResponsesTest, ReasoningAsASummaryAndSealed) {
  PreparedResponse prepared =
      prepare(R"("reasoning":{"summary":"auto"},"include":["reasoning.encrypted_content"])");
  OutputDelta output;
  output.reasoning = "why";
  const std::vector<Json> events = stream(prepared, output, FinishReason::kStop);
  EXPECT_EQ(types_,
            "created in_progress output_item.added reasoning_summary_part.added "
            "reasoning_summary_text.delta reasoning_summary_text.done "
            "reasoning_summary_part.done output_item.done completed ");
  EXPECT_EQ(events[4]["summary_index"], 0);
  const Json& item = events.back()["response"]["output"][0];
  EXPECT_EQ(item["summary"], *parse_json(R"([{"type":"summary_text","text":"why"}])"));
  EXPECT_EQ(item["content"], *parse_json(R"([{"type":"reasoning_text","text":"why"}])"));
  EXPECT_EQ(unseal_reasoning(item["encrypted_content"].get<std::string>()), "why");
  EXPECT_EQ(unseal_reasoning("gAAAAA"), std::nullopt);
}

TEST_F(ResponsesTest, LogProbabilitiesOfTheText) {
  PreparedResponse prepared =
      prepare(R"("top_logprobs":1,"include":["message.output_text.logprobs"])");
  EXPECT_TRUE(prepared.request.sampling.return_logprobs);
  EXPECT_EQ(prepared.request.sampling.top_logprobs, 1u);
  OutputDelta output;
  output.text = "A";
  const TokenId a = lab_.nano().ids("A").front();
  output.text_tokens.push_back({a, -0.5f, {{a, -0.5f}}});
  const std::vector<Json> events = stream(prepared, output, FinishReason::kStop);
  const Json expected = *parse_json(
      R"([{"token":"A","logprob":-0.5,"bytes":[65],
           "top_logprobs":[{"token":"A","logprob":-0.5,"bytes":[65]}]}])");
  EXPECT_EQ(events[4]["logprobs"], expected);
  EXPECT_EQ(events.back()["response"]["output"][0]["content"][0]["logprobs"], expected);
}

TEST_F(ResponsesTest, FailuresBeforeAndBehindTheFirstEvent) {
  ErrorDetails error = error_details(absl::UnavailableError("no engine"));
  std::vector<Json> events = test::events_of(prepare(R"("stream":true)").encoder->fail(error));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0], *parse_json(R"({"type":"error","code":"server_error","message":"no engine",
                                       "param":null,"sequence_number":0})"));
  PreparedResponse prepared = prepare(R"("stream":true)");
  prepared.encoder->begin();
  OutputDelta output;
  output.text = "t";
  prepared.encoder->delta(output);
  events = test::events_of(prepared.encoder->fail(error));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["type"], "response.failed");
  EXPECT_EQ(events[0]["response"]["status"], "failed");
  EXPECT_EQ(events[0]["response"]["error"],
            *parse_json(R"({"code":"server_error","message":"no engine"})"));
  EXPECT_EQ(events[0]["response"]["output"][0]["status"], "incomplete");
}

TEST_F(ResponsesTest, ImagesAreReadAndThenRefusedForWantOfAnEncoder) {
  const auto prepared = prepare_response(
      R"({"model":"deepseek-flash","input":[{"role":"user","content":[{"type":"input_image",
          "image_url":"https://example.org/a.png"}]}]})",
      lab_.nano().value, {"7", 5}, {});
  ASSERT_FALSE(prepared.ok());
  EXPECT_EQ(error_details(prepared.status()).param, "input[0].content[0].image_url");
  EXPECT_THAT(std::string(prepared.status().message()), HasSubstr("encoder"));
}

TEST_F(ResponsesTest, IdsNameTheirOwner) {
  EXPECT_EQ(prepare(R"("store":true)", "entry_point-0").encoder->response_id(),
            "resp_7_entry_point-0");
  EXPECT_EQ(owner_of_response("resp_7_entry_point-0"), "entry_point-0");
  for (const char* id : {"", "resp_", "resp_7", "resp_7_", "resp__e", "chatcmpl-7_e"}) {
    EXPECT_EQ(owner_of_response(id), std::nullopt) << id;
  }
}

TEST_F(ResponsesTest, StatusesOfAResponseThatIsNotOver) {
  PreparedResponse prepared = prepare(R"("background":true)");
  EXPECT_EQ((*parse_json(prepared.encoder->response()))["status"], "queued");
  prepared.encoder->begin();
  EXPECT_EQ((*parse_json(prepared.encoder->response()))["status"], "in_progress");
  OutputDelta output;
  output.text = "half";
  prepared.encoder->delta(output);
  prepared.encoder->cancel();
  const Json response = *parse_json(prepared.encoder->response());
  EXPECT_EQ(response["status"], "cancelled");
  EXPECT_EQ(response["background"], true);
  EXPECT_THAT(prepared.encoder->output_items(), HasSubstr("half"));
}

}  // namespace
}  // namespace millrace::api::recipe
