#include "deploy/cli/completion_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/http/rest_server.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::deploy::cli {
namespace {

using common::http::RestRequest;
using common::http::RestResponse;
using common::http::RestServer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A server that gives one prepared answer to every POST and keeps the last request's body.
class CompletionClientTest : public ::testing::Test {
 protected:
  CompletionClientTest() {
    const auto answer = [this](const RestRequest& request) {
      body_ = request.body;
      return answer_;
    };
    const auto models = [](const RestRequest&) {
      return RestResponse{.body = R"({"object":"list","data":[{"id":"nano","object":"model",)"
                                  R"("max_model_len":32768}]})"};
    };
    auto server =
        RestServer::start({.listen = "127.0.0.1:0"}, {{"POST", "/v1/chat/completions", answer},
                                                      {"POST", "/v1/completions", answer},
                                                      {"GET", "/v1/models", models}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_.emplace("http://" + server_->address());
  }

  void will_stream(std::string events) {
    answer_ = {.body = std::move(events), .content_type = "text/event-stream"};
  }

  RestResponse answer_;
  std::string body_;
  std::unique_ptr<RestServer> server_;
  std::optional<CompletionClient> client_;
  std::vector<std::string> pieces_;
  const DeltaReceiver collect_ = [this](const Delta& delta) {
    pieces_.push_back(str_cat(delta.reasoning, "|", delta.text, "|", delta.ids.size()));
    return true;
  };
};

TEST_F(CompletionClientTest, ReadsTheServedModel) {
  const auto model = client_->model();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->id, "nano");
  EXPECT_EQ(model->max_model_len, 32768);
}

// Chunks in the form of OpenAI's API reference, with DeepSeek's reasoning_content.
TEST_F(CompletionClientTest, AssemblesAChatAnswerFromItsPieces) {
  will_stream(
      R"(data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]})"
      "\n\n"
      R"(data: {"choices":[{"index":0,"delta":{"content":null,"reasoning_content":"Hm."}}]})"
      "\n\n: keep-alive\n\n"
      R"(data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]})"
      "\n\n"
      R"(data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]})"
      "\n\n"
      R"(data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}})"
      "\n\ndata: [DONE]\n\n");
  ChatRequest request;
  request.model = "nano";
  request.messages = {{"user", "Hello"}};
  request.is_thinking = false;
  const auto answer = client_->chat(request, collect_);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->reasoning, "Hm.");
  EXPECT_EQ(answer->text, "Hi");
  EXPECT_EQ(answer->finish_reason, "stop");
  EXPECT_EQ(answer->prompt_tokens, 9);
  EXPECT_EQ(answer->completion_tokens, 4);
  EXPECT_THAT(pieces_, ElementsAre("Hm.||0", "|Hi|0"));
  EXPECT_EQ(*parse_json(body_), *parse_json(R"({"model":"nano",
      "messages":[{"role":"user","content":"Hello"}],"thinking":{"type":"disabled"},
      "stream":true,"stream_options":{"include_usage":true}})"));
}

TEST_F(CompletionClientTest, AssemblesTokenIds) {
  will_stream(
      R"(data: {"choices":[{"index":0,"text":"a","token_ids":[5,6]}]})"
      "\n\n"
      R"(data: {"choices":[{"index":0,"text":"","token_ids":[7],"finish_reason":"length"}]})"
      "\n\ndata: [DONE]\n\n");
  TextRequest request;
  request.model = "nano";
  request.prompt_ids = std::vector<TokenId>{0, 17};
  request.max_tokens = 3;
  request.ignore_eos = true;
  request.echo_ids = true;
  const auto answer = client_->complete(request, collect_);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(answer->ids, ElementsAre(5, 6, 7));
  EXPECT_EQ(answer->finish_reason, "length");
  EXPECT_EQ(*parse_json(body_), *parse_json(R"({"model":"nano","prompt":[0,17],
      "ignore_eos":true,"echo_ids":true,"max_tokens":3,
      "stream":true,"stream_options":{"include_usage":true}})"));
}

TEST_F(CompletionClientTest, AnErrorStatusComesWithTheServersMessage) {
  answer_ = {.status = 400,
             .body = R"({"error":{"message":"`top_p` must be from 0 to 1","param":"top_p"}})"};
  const auto answer = client_->chat({}, collect_);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(answer.status().ToString(), HasSubstr("HTTP 400: `top_p` must be from 0 to 1"));
}

TEST_F(CompletionClientTest, AnErrorWithinTheStreamIsAnError) {
  will_stream("data: {\"error\":{\"message\":\"the deadline passed\"}}\n\n");
  EXPECT_THAT(client_->chat({}, collect_).status().ToString(), HasSubstr("the deadline passed"));
}

TEST_F(CompletionClientTest, AStreamThatEndsEarlyIsAnError) {
  will_stream("data: {\"choices\":[{\"index\":0,\"text\":\"half\"}]}\n\n");
  EXPECT_EQ(client_->complete({}, collect_).status().code(), absl::StatusCode::kUnavailable);
  will_stream("data: {not json\n\n");
  EXPECT_EQ(client_->complete({}, collect_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CompletionClientTest, TheReceiverCanStopIt) {
  will_stream("data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\ndata: [DONE]\n\n");
  const auto answer = client_->complete({}, [](const Delta&) { return false; });
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace millrace::deploy::cli
