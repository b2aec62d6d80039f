#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/entrypoint/fake_cluster.h"
#include "api/entrypoint/test_client.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

using namespace std::chrono_literals;
using common::http::HttpClient;
using common::http::HttpResponse;
using test::error_of;
using test::FakeCluster;
using test::post;
using test::raw_request;
using test::Received;
using test::stream;
using test::text_behind;
using testing::HasSubstr;

TEST(EntrypointProtocols, StreamsAMessageAndCountsItsTokens) {
  FakeCluster cluster;
  cluster.start_workers();
  const std::string members = R"("model":"nano","messages":[{"role":"user","content":"Hi"}])";
  const HttpResponse count = post(cluster, "/v1/messages/count_tokens", "{" + members + "}");
  ASSERT_EQ(count.status, 200) << count.body;
  const auto prompt_tokens = (*parse_json(count.body))["input_tokens"].get<std::size_t>();
  const Received received = stream(cluster, "/v1/messages?beta=true",
                                   "{" + members + R"(,"max_tokens":12,"stream":true})");
  ASSERT_EQ(received.status, 200);
  std::string types;
  std::string text;
  Json ending;
  for (const std::string& data : received.data) {
    const Json event = *parse_json(data);
    const auto type = event["type"].get<std::string>();
    EXPECT_THAT(received.raw, HasSubstr(str_cat("event: ", type, "\ndata: ", data)));
    if (type == "content_block_delta") {
      text += event["delta"]["text"].get<std::string>();
    } else {
      types += type;
      types += ' ';
    }
    if (type == "message_delta") ending = event;
  }
  EXPECT_EQ(
      types,
      "message_start content_block_start ping content_block_stop message_delta message_stop ");
  ASSERT_FALSE(received.data.empty());
  EXPECT_EQ((*parse_json(received.data.front()))["message"]["usage"]["input_tokens"],
            prompt_tokens);
  EXPECT_EQ(text, text_behind(prompt_tokens, 12));
  EXPECT_EQ(ending["delta"]["stop_reason"], "max_tokens");
  EXPECT_EQ(ending["usage"]["output_tokens"], 12);
}

TEST(EntrypointProtocols, RefusesMessagesInTheProtocolsForm) {
  const FakeCluster cluster;
  for (const char* path : {"/v1/messages", "/v1/messages/count_tokens"}) {
    const HttpResponse response = post(cluster, path, R"({"model":"nano","max_tokens":1})");
    EXPECT_EQ(response.status, 400);
    const Json body = *parse_json(response.body);
    EXPECT_EQ(body["type"], "error");
    EXPECT_EQ(body["error"]["type"], "invalid_request_error");
    EXPECT_EQ(body["error"]["message"], "messages: Field required");
    EXPECT_FALSE(body["request_id"].get<std::string>().empty());
  }
  const HttpResponse response =
      post(cluster, "/v1/messages",
           R"({"model":"nano","max_tokens":1,"messages":[{"role":"user","content":"Hi"}]})");
  EXPECT_EQ(response.status, 529);
  EXPECT_EQ(response.header("retry-after"), "1");
  EXPECT_EQ(error_of(response)["type"], "overloaded_error");
}

TEST(EntrypointProtocols, WhatTheListenerRefusesHasTheFormOfThePathsProtocol) {
  const FakeCluster cluster({.body_bytes = 1000});
  HttpClient client;
  HttpResponse response = *client.get(cluster.url("/v1/messages"));
  EXPECT_EQ(response.status, 405);
  EXPECT_EQ((*parse_json(response.body))["type"], "error");
  EXPECT_EQ(error_of(response)["type"], "invalid_request_error");
  EXPECT_EQ(response.header("request-id"), (*parse_json(response.body))["request_id"]);
  response = post(cluster, "/v1/messages/no/such", "{}");
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(error_of(response)["type"], "not_found_error");
  response = post(cluster, "/v1/messages", std::string(1001, ' '));
  EXPECT_EQ(response.status, 413);
  EXPECT_EQ(error_of(response)["type"], "request_too_large");
  response = post(cluster, "/v1/chat/completions", std::string(1001, ' '));
  EXPECT_EQ(response.status, 413);
  EXPECT_EQ(error_of(response)["type"], "invalid_request_error");
  EXPECT_TRUE(error_of(response).contains("param"));
  EXPECT_FALSE(response.header("x-request-id").empty());
}

TEST(EntrypointProtocols, EveryAnswerNamesItsRequest) {
  FakeCluster cluster;
  cluster.start_workers();
  const HttpResponse whole = post(cluster, "/v1/completions", raw_request(2));
  EXPECT_EQ((*parse_json(whole.body))["id"], "cmpl-" + std::string(whole.header("x-request-id")));
  EXPECT_EQ(whole.header("request-id"), whole.header("x-request-id"));
  const HttpResponse streamed =
      post(cluster, "/v1/completions", raw_request(2, R"(,"stream":true)"));
  EXPECT_THAT(streamed.body, HasSubstr("cmpl-" + std::string(streamed.header("x-request-id"))));
}

TEST(EntrypointProtocols, ListsItsModel) {
  FakeCluster cluster;
  HttpClient client;
  const auto response = client.get(cluster.url("/v1/models"));
  ASSERT_TRUE(response.ok());
  const Json body = *parse_json(response->body);
  EXPECT_EQ(body["data"][0]["id"], "nano");
  EXPECT_EQ(body["data"][0]["object"], "model");
  EXPECT_EQ(body["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(body["data"][1]["id"], "nano/alias");
  EXPECT_EQ(client.get(cluster.url("/health"))->status, 200);
  EXPECT_EQ((*parse_json(client.get(cluster.url("/v1/models/nano"))->body))["object"], "model");
  EXPECT_EQ((*parse_json(client.get(cluster.url("/v1/models/nano%2Falias"))->body))["id"],
            "nano/alias");
  const HttpResponse unknown = *client.get(cluster.url("/v1/models/other"));
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(error_of(unknown)["code"], "model_not_found");
}

TEST(EntrypointProtocols, ListsItsModelInTheOtherFormForClientsOfMessages) {
  FakeCluster cluster;
  HttpClient client;
  common::http::HttpRequest request;
  request.headers = {{"anthropic-version", "2023-06-01"}};
  const auto get = [&](const std::string& path) {
    request.url = cluster.url(path);
    return *client.send(request);
  };
  const Json list = *parse_json(get("/v1/models").body);
  EXPECT_EQ(list["data"][0]["type"], "model");
  EXPECT_EQ(list["data"][0]["display_name"], "nano");
  EXPECT_EQ(list["first_id"], "nano");
  EXPECT_EQ(list["last_id"], "nano/alias");
  EXPECT_EQ(list["has_more"], false);
  EXPECT_EQ((*parse_json(get("/v1/models/nano").body))["type"], "model");
  EXPECT_EQ(error_of(get("/v1/models/other"))["type"], "not_found_error");
}

TEST(EntrypointProtocols, AnAliasIsTheModel) {
  FakeCluster cluster;
  cluster.start_workers();
  const HttpResponse response =
      post(cluster, "/v1/chat/completions",
           R"({"model":"nano/alias","max_tokens":2,"messages":[{"role":"user","content":"Hi"}]})");
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_EQ((*parse_json(response.body))["model"], "nano");
}

// Written by hand after what that agent is known to send: unknown members, mixed blocks, a beta
// query.
TEST(EntrypointProtocols, ServesTheRequestsOfClaudeCode) {
  FakeCluster cluster;
  cluster.start_workers();
  const auto text = read_file(MILLRACE_SOURCE_DIR "/tests/data/encoding/claude_code_requests.json");
  ASSERT_TRUE(text.ok()) << text.status();
  const Json requests = *parse_json(*text);
  for (const Json& request : requests) {
    SCOPED_TRACE(request["name"].get<std::string>());
    Json body = request["body"];
    body["model"] = "nano";
    const auto path = request["path"].get<std::string>();
    if (path.find("count_tokens") != std::string::npos) {
      const HttpResponse count = post(cluster, path, dump_json(body));
      EXPECT_EQ(count.status, 200) << count.body;
      EXPECT_GT((*parse_json(count.body))["input_tokens"], 0);
      continue;
    }
    const Received received = stream(cluster, path, dump_json(body));
    EXPECT_EQ(received.status, 200) << received.raw;
    ASSERT_FALSE(received.data.empty());
    EXPECT_EQ((*parse_json(received.data.back()))["type"], "message_stop");
  }
}

TEST(EntrypointProtocols, ASilentMessageGetsPings) {
  FakeCluster cluster({.keep_alive = 50ms});
  cluster.start_workers();
  cluster.worker("decode-0").token_delay = 300ms;
  const Received received = stream(
      cluster, "/v1/messages",
      R"({"model":"nano","max_tokens":2,"stream":true,"messages":[{"role":"user","content":"Hi"}]})");
  std::size_t pings = 0;
  for (const std::string& data : received.data) pings += data == R"({"type":"ping"})" ? 1 : 0;
  EXPECT_GE(pings, 3u);  // one follows the first block's start
  EXPECT_THAT(received.raw, HasSubstr("event: ping\ndata: {\"type\":\"ping\"}\n\n"));
}

}  // namespace
}  // namespace millrace::api::entrypoint
