#include "api/entrypoint/entrypoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "api/entrypoint/fake_cluster.h"
#include "common/http/http_client.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

using namespace std::chrono_literals;
using admin::WorkerRole;
using common::http::HttpClient;
using common::http::HttpResponse;
using test::eventually;
using test::FakeCluster;
using test::text_behind;
using testing::HasSubstr;

constexpr std::size_t kPromptTokens = 3;

/// A raw prompt of kPromptTokens ids: the output is then text_behind(kPromptTokens, n).
std::string raw_request(int max_tokens, const std::string& more = "") {
  return str_cat(R"({"model":"nano","prompt":[5,6,7],"max_tokens":)", max_tokens, more, "}");
}

/// A server-sent event stream as it was received.
struct Received {
  int status = 0;
  std::string text;               // of all choices' texts
  std::vector<std::string> data;  // of the events
  std::string raw;
};

Received stream(
    const FakeCluster& cluster, const std::string& path, const std::string& body,
    const std::function<bool(const std::string& so_far)>& go_on = [](const std::string&) {
      return true;
    }) {
  HttpClient client({.timeout = 60s});
  common::http::HttpRequest request;
  request.method = "POST";
  request.url = cluster.url(path);
  request.body = body;
  Received received;
  const auto response = client.stream(request, [&](std::string_view piece) {
    received.raw.append(piece);
    return go_on(received.raw);
  });
  if (response.ok()) received.status = response->status;
  for (std::size_t at = 0; (at = received.raw.find("data: ", at)) != std::string::npos;) {
    const std::size_t end = received.raw.find("\n\n", at);
    received.data.push_back(received.raw.substr(at + 6, end - at - 6));
    at = end;
    const auto json = parse_json(received.data.back());
    if (!json.ok() || !json->contains("choices") || (*json)["choices"].empty()) continue;
    const Json& choice = (*json)["choices"][0];
    if (choice.contains("text")) received.text += choice["text"].get<std::string>();
    if (choice.contains("delta") && choice["delta"].contains("content")) {
      received.text += choice["delta"]["content"].get<std::string>();
    }
  }
  return received;
}

HttpResponse post(const FakeCluster& cluster, const std::string& path, const std::string& body) {
  HttpClient client({.timeout = 60s});
  const auto response = client.post(cluster.url(path), body);
  EXPECT_TRUE(response.ok()) << response.status();
  return response.ok() ? *response : HttpResponse{};
}

Json error_of(const HttpResponse& response) {
  const auto json = parse_json(response.body);
  EXPECT_TRUE(json.ok()) << response.body;
  return json.ok() ? (*json)["error"] : Json();
}

TEST(Entrypoint, AnswersACompletionWithIdsAndUsage) {
  FakeCluster cluster;
  cluster.start_workers();
  const HttpResponse response =
      post(cluster, "/v1/completions", raw_request(10, R"(,"echo_ids":true,"logprobs":0)"));
  ASSERT_EQ(response.status, 200) << response.body;
  const Json body = *parse_json(response.body);
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["text"], text_behind(kPromptTokens, 10));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["prompt_token_ids"], Json({5, 6, 7}));
  EXPECT_EQ(choice["token_ids"].size(), 10u);
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 10u);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 10);
}

TEST(Entrypoint, StreamsAChat) {
  FakeCluster cluster;
  cluster.start_workers();
  const Received received =
      stream(cluster, "/v1/chat/completions",
             R"({"model":"nano","messages":[{"role":"user","content":"Hi"}],"max_tokens":12,
                 "stream":true,"stream_options":{"include_usage":true}})");
  ASSERT_EQ(received.status, 200);
  ASSERT_GE(received.data.size(), 4u);
  EXPECT_EQ(received.data.back(), "[DONE]");
  const Json first = *parse_json(received.data.front());
  EXPECT_EQ(first["choices"][0]["delta"]["role"], "assistant");
  const Json usage = *parse_json(received.data[received.data.size() - 2]);
  EXPECT_EQ(usage["usage"]["completion_tokens"], 12);
  const std::size_t prompt = usage["usage"]["prompt_tokens"].get<std::size_t>();
  EXPECT_EQ(received.text, text_behind(prompt, 12));
}

TEST(Entrypoint, StreamsAMessageAndCountsItsTokens) {
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

TEST(Entrypoint, RefusesMessagesInTheProtocolsForm) {
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

TEST(Entrypoint, WhatTheListenerRefusesHasTheFormOfThePathsProtocol) {
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

TEST(Entrypoint, EveryAnswerNamesItsRequest) {
  FakeCluster cluster;
  cluster.start_workers();
  const HttpResponse whole = post(cluster, "/v1/completions", raw_request(2));
  EXPECT_EQ((*parse_json(whole.body))["id"], "cmpl-" + std::string(whole.header("x-request-id")));
  EXPECT_EQ(whole.header("request-id"), whole.header("x-request-id"));
  const HttpResponse streamed =
      post(cluster, "/v1/completions", raw_request(2, R"(,"stream":true)"));
  EXPECT_THAT(streamed.body, HasSubstr("cmpl-" + std::string(streamed.header("x-request-id"))));
}

TEST(Entrypoint, RefusesWhatIsWrongInTheErrorForm) {
  FakeCluster cluster({.context_tokens = 100});
  cluster.start_workers();
  HttpResponse response = post(cluster, "/v1/chat/completions", "{\"model\": ");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(error_of(response)["type"], "invalid_request_error");
  response = post(cluster, "/v1/chat/completions", R"({"model":"nano","messages":[]})");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(error_of(response)["param"], "messages");
  response = post(cluster, "/v1/chat/completions",
                  R"({"model":"other","messages":[{"role":"user","content":"Hi"}]})");
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(error_of(response)["code"], "model_not_found");
  EXPECT_EQ(post(cluster, "/v1/no/such/route", "{}").status, 404);
  HttpClient client;
  EXPECT_EQ(client.get(cluster.url("/v1/chat/completions"))->status, 405);
  std::string ids = "5";
  for (int i = 1; i < 120; ++i) ids += ",5";
  response = post(cluster, "/v1/completions", R"({"model":"nano","prompt":[)" + ids + "]}");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(error_of(response)["code"], "context_length_exceeded");
  EXPECT_EQ(error_of(response)["param"], "prompt");
  EXPECT_THAT(error_of(response)["message"].get<std::string>(),
              testing::AllOf(HasSubstr("100"), HasSubstr("120")));
  // An answer ends where the context ends.
  response = post(cluster, "/v1/completions", raw_request(1000));
  EXPECT_EQ((*parse_json(response.body))["usage"]["total_tokens"], 100);
}

TEST(Entrypoint, ListsItsModel) {
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

TEST(Entrypoint, ListsItsModelInTheOtherFormForClientsOfMessages) {
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

TEST(Entrypoint, AnAliasIsTheModel) {
  FakeCluster cluster;
  cluster.start_workers();
  const HttpResponse response =
      post(cluster, "/v1/chat/completions",
           R"({"model":"nano/alias","max_tokens":2,"messages":[{"role":"user","content":"Hi"}]})");
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_EQ((*parse_json(response.body))["model"], "nano");
}

TEST(Entrypoint, WithoutAnEngineANewRequestIsRefusedAtOnce) {
  FakeCluster cluster;
  cluster.start_worker("prefill-0", WorkerRole::kPrefill);
  ASSERT_TRUE(
      eventually([&] { return cluster.metric("millrace_engine_workers{role=\"prefill\"}") == 1; }));
  const auto start = std::chrono::steady_clock::now();
  const HttpResponse response = post(cluster, "/v1/completions", raw_request(5));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 1s);
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.header("retry-after"), "1");
  EXPECT_THAT(error_of(response)["message"].get<std::string>(), HasSubstr("decode"));
  EXPECT_EQ(cluster.metric("millrace_requests_refused_total{reason=\"no_engine\"}"), 1);
}

TEST(Entrypoint, ADeadDecodeWorkerCostsNoWord) {
  FakeCluster cluster;
  cluster.start_workers();
  cluster.worker("decode-0").token_delay = 10ms;
  std::atomic<int> streams_begun = 0;
  constexpr int kClients = 20;
  std::vector<std::future<Received>> results;
  results.reserve(kClients);
  for (int i = 0; i < kClients; ++i) {
    results.push_back(std::async(std::launch::async, [&] {
      bool has_begun = false;
      return stream(cluster, "/v1/completions", raw_request(60, R"(,"stream":true)"),
                    [&](const std::string& so_far) {
                      if (!has_begun && so_far.size() > 1000) {
                        has_begun = true;
                        ++streams_begun;
                      }
                      return true;
                    });
    }));
  }
  ASSERT_TRUE(eventually([&] { return streams_begun == 20; }));
  cluster.kill_worker("decode-0");
  std::this_thread::sleep_for(100ms);  // they wait; nobody is told
  cluster.start_worker("decode-0", WorkerRole::kDecode);
  for (auto& result : results) {
    const Received received = result.get();
    EXPECT_EQ(received.text, text_behind(kPromptTokens, 60));
    ASSERT_FALSE(received.data.empty());
    EXPECT_EQ(received.data.back(), "[DONE]");
  }
  EXPECT_EQ(cluster.metric("millrace_reroutes_total{reason=\"worker_lost\"}"), 20);
  EXPECT_EQ(cluster.metric("millrace_requests_total{outcome=\"length\"}"), 20);
}

TEST(Entrypoint, ADeadPrefillWorkerCostsNoRequest) {
  FakeCluster cluster;
  cluster.start_workers();
  cluster.worker("prefill-0").token_delay = 10'000ms;
  auto waiting = std::async(std::launch::async,
                            [&] { return post(cluster, "/v1/completions", raw_request(20)); });
  ASSERT_TRUE(eventually([&] { return cluster.worker("prefill-0").running() == 1; }));
  cluster.kill_worker("prefill-0");
  cluster.start_worker("prefill-0", WorkerRole::kPrefill);
  const Json body = *parse_json(waiting.get().body);
  EXPECT_EQ(body["choices"][0]["text"], text_behind(kPromptTokens, 20));
}

TEST(Entrypoint, AnotherWorkerTakesOverAtOnce) {
  FakeCluster cluster;
  cluster.start_workers();
  cluster.start_worker("decode-1", WorkerRole::kDecode);
  ASSERT_TRUE(
      eventually([&] { return cluster.metric("millrace_engine_workers{role=\"decode\"}") == 2; }));
  cluster.worker("decode-0").token_delay = 20ms;
  cluster.worker("decode-1").token_delay = 20ms;
  auto result = std::async(std::launch::async, [&] {
    return stream(cluster, "/v1/completions", raw_request(50, R"(,"stream":true)"));
  });
  ASSERT_TRUE(eventually([&] {
    return cluster.worker("decode-0").running() + cluster.worker("decode-1").running() == 1;
  }));
  cluster.kill_worker(cluster.worker("decode-0").running() == 1 ? "decode-0" : "decode-1");
  EXPECT_EQ(result.get().text, text_behind(kPromptTokens, 50));
}

TEST(Entrypoint, AClientThatHangsUpIsCancelledEverywhereWithinASecond) {
  FakeCluster cluster;
  cluster.start_workers();
  cluster.worker("decode-0").token_delay = 20ms;
  // Some leave a stream, some a plain request that runs.
  std::vector<std::future<void>> clients;
  for (int i = 0; i < 10; ++i) {
    clients.push_back(std::async(std::launch::async, [&] {
      stream(cluster, "/v1/completions", raw_request(2000, R"(,"stream":true)"),
             [](const std::string& so_far) { return so_far.size() < 2000; });
    }));
    clients.push_back(std::async(std::launch::async, [&] {
      HttpClient client({.timeout = 300ms});
      const auto response = client.post(cluster.url("/v1/completions"), raw_request(2000));
      EXPECT_EQ(response.status().code(), absl::StatusCode::kDeadlineExceeded);
    }));
  }
  for (auto& client : clients) client.get();
  EXPECT_TRUE(eventually([&] { return cluster.worker("decode-0").running() == 0; }, 1000ms));
  EXPECT_EQ(cluster.metric("millrace_requests_running"), 0);
  EXPECT_EQ(cluster.metric("millrace_requests_waiting"), 0);
  EXPECT_EQ(cluster.metric("millrace_requests_total{outcome=\"cancelled\"}"), 20);
  // And some while they wait for their first token.
  cluster.worker("prefill-0").token_delay = 5000ms;
  HttpClient client({.timeout = 200ms});
  EXPECT_FALSE(client.post(cluster.url("/v1/completions"), raw_request(2000)).ok());
  EXPECT_TRUE(eventually([&] { return cluster.worker("prefill-0").running() == 0; }, 1000ms));
  EXPECT_EQ(cluster.metric("millrace_requests_waiting"), 0);
  EXPECT_EQ(cluster.worker("prefill-0").open_exports(), 0);
}

TEST(Entrypoint, ChoicesAreRequestsOfTheirOwnWithTheirOwnSeeds) {
  FakeCluster cluster;
  cluster.start_workers();
  const HttpResponse response =
      post(cluster, "/v1/completions", raw_request(10, R"(,"n":3,"seed":41)"));
  ASSERT_EQ(response.status, 200) << response.body;
  const Json body = *parse_json(response.body);
  ASSERT_EQ(body["choices"].size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], text_behind(kPromptTokens, 10));
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 30);
  EXPECT_EQ(cluster.worker("decode-0").seeds(), (std::multiset<std::uint64_t>{41, 42, 43}));
  const Received received =
      stream(cluster, "/v1/completions", raw_request(10, R"(,"n":3,"stream":true)"));
  std::map<int, std::string> texts;
  int ends = 0;
  for (const std::string& data : received.data) {
    if (data == "[DONE]") continue;
    const Json choice = (*parse_json(data))["choices"][0];
    texts[choice["index"].get<int>()] += choice["text"].get<std::string>();
    if (!choice["finish_reason"].is_null()) ++ends;
  }
  EXPECT_EQ(ends, 3);
  EXPECT_EQ(texts.size(), 3u);
  for (const auto& [index, text] : texts) EXPECT_EQ(text, text_behind(kPromptTokens, 10)) << index;
}

TEST(Entrypoint, AClientThatLeavesTakesAllChoicesAlong) {
  FakeCluster cluster;
  cluster.start_workers();
  cluster.worker("decode-0").token_delay = 20ms;
  stream(cluster, "/v1/completions", raw_request(2000, R"(,"n":4,"stream":true)"),
         [](const std::string& so_far) { return so_far.size() < 4000; });
  EXPECT_TRUE(eventually([&] { return cluster.worker("decode-0").running() == 0; }, 1000ms));
  EXPECT_EQ(cluster.metric("millrace_requests_total{outcome=\"cancelled\"}"), 4);
}

TEST(Entrypoint, AChoiceThatFailsFailsTheAnswer) {
  FakeCluster cluster({.request_deadline = 300ms});
  cluster.start_workers();
  cluster.worker("decode-0").token_delay = 10'000ms;
  const HttpResponse response = post(cluster, "/v1/completions", raw_request(50, R"(,"n":3)"));
  EXPECT_EQ(response.status, 504);
  EXPECT_EQ(error_of(response)["type"], "timeout_error");
  EXPECT_TRUE(eventually([&] { return cluster.worker("decode-0").running() == 0; }));
  EXPECT_EQ(cluster.metric("millrace_requests_total{outcome=\"deadline\"}"), 1);
  EXPECT_EQ(cluster.metric("millrace_requests_total{outcome=\"cancelled\"}"), 2);
}

TEST(Entrypoint, MoreChoicesThanTheQueueHoldsAreRefused) {
  FakeCluster cluster({.max_queue = 3});
  cluster.start_workers();
  EXPECT_EQ(post(cluster, "/v1/completions", raw_request(5, R"(,"n":4)")).status, 429);
  EXPECT_EQ(post(cluster, "/v1/completions", raw_request(5, R"(,"n":3)")).status, 200);
}

TEST(Entrypoint, AStopStringEndsTheAnswerAndTheEnginesWork) {
  FakeCluster cluster;
  cluster.start_workers();
  // Positions from 3 on give d e f g h ...
  const HttpResponse response =
      post(cluster, "/v1/completions", raw_request(2000, R"(,"stop":["xyz","ghi"])"));
  const Json body = *parse_json(response.body);
  EXPECT_EQ(body["choices"][0]["text"], "def");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
  EXPECT_TRUE(eventually([&] { return cluster.worker("decode-0").running() == 0; }, 1000ms));
  EXPECT_EQ(cluster.metric("millrace_requests_total{outcome=\"stop_string\"}"), 1);
}

TEST(Entrypoint, AFullQueueIsRefusedWithRetryAfter) {
  FakeCluster cluster({.max_queue = 3});
  cluster.start_workers();
  cluster.worker("prefill-0").token_delay = 500ms;
  constexpr int kAccepted = 3;
  std::vector<std::future<HttpResponse>> accepted;
  accepted.reserve(kAccepted);
  for (int i = 0; i < kAccepted; ++i) {
    accepted.push_back(std::async(
        std::launch::async, [&] { return post(cluster, "/v1/completions", raw_request(5)); }));
  }
  ASSERT_TRUE(eventually([&] { return cluster.metric("millrace_requests_waiting") == 3; }));
  const HttpResponse refused = post(cluster, "/v1/completions", raw_request(5));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.header("retry-after"), "1");
  EXPECT_EQ(error_of(refused)["type"], "rate_limit_error");
  for (auto& response : accepted) EXPECT_EQ(response.get().status, 200);
  EXPECT_EQ(cluster.metric("millrace_requests_refused_total{reason=\"queue_full\"}"), 1);
}

TEST(Entrypoint, AWorkerThatRefusesIsAskedAgainLater) {
  FakeCluster cluster;
  cluster.start_workers();
  cluster.worker("decode-0").is_full = true;
  auto result = std::async(std::launch::async,
                           [&] { return post(cluster, "/v1/completions", raw_request(5)); });
  ASSERT_TRUE(eventually([&] { return cluster.worker("decode-0").starts() > 3; }));
  // Its KV waits at the source meanwhile.
  EXPECT_EQ(cluster.worker("prefill-0").starts(), 1);
  cluster.worker("decode-0").is_full = false;
  EXPECT_EQ((*parse_json(result.get().body))["choices"][0]["text"], text_behind(kPromptTokens, 5));
}

TEST(Entrypoint, TheDeadlineEndsARequestThatNobodyServes) {
  FakeCluster cluster({.request_deadline = 300ms});
  cluster.start_workers();
  cluster.worker("prefill-0").token_delay = 10'000ms;
  const HttpResponse response = post(cluster, "/v1/completions", raw_request(5));
  EXPECT_EQ(response.status, 504);
  EXPECT_EQ(error_of(response)["type"], "timeout_error");
  // After the stream began the error is its last event.
  cluster.worker("prefill-0").token_delay = 1ms;
  cluster.worker("decode-0").token_delay = 10'000ms;
  const Received received = stream(cluster, "/v1/completions", raw_request(5, R"(,"stream":true)"));
  ASSERT_FALSE(received.data.empty());
  EXPECT_THAT(received.data.back(), HasSubstr("timeout_error"));
  EXPECT_TRUE(eventually([&] { return cluster.worker("decode-0").running() == 0; }));
  EXPECT_EQ(cluster.metric("millrace_requests_total{outcome=\"deadline\"}"), 2);
}

TEST(Entrypoint, ASilentStreamGetsComments) {
  FakeCluster cluster({.keep_alive = 50ms});
  cluster.start_workers();
  cluster.worker("prefill-0").token_delay = 300ms;
  const Received received = stream(cluster, "/v1/completions", raw_request(5, R"(,"stream":true)"));
  EXPECT_EQ(received.status, 200);
  EXPECT_THAT(received.raw, testing::StartsWith(": keep-alive\n\n"));
  EXPECT_EQ(received.text, text_behind(kPromptTokens, 5));
}

TEST(Entrypoint, ASilentMessageGetsPings) {
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

TEST(Entrypoint, WithoutAControllerTheLastViewStaysInForce) {
  FakeCluster cluster;
  cluster.start_workers();
  cluster.stop_controller();
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(post(cluster, "/v1/completions", raw_request(5)).status, 200);
}

TEST(Entrypoint, WorkersOfAnotherArtifactOrModelAreNotUsed) {
  FakeCluster cluster;
  cluster.edit_view(
      [](admin::RoutingView& view) { view.artifact_digest_hex = std::string(64, '0'); });
  cluster.start_worker("decode-0", WorkerRole::kDecode);
  cluster.start_worker("prefill-0", WorkerRole::kPrefill);
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(post(cluster, "/v1/completions", raw_request(5)).status, 503);
}

TEST(Entrypoint, AWorkerThatLeftTheViewFinishesWhatItHas) {
  FakeCluster cluster;
  cluster.start_workers();
  cluster.worker("decode-0").token_delay = 20ms;
  auto result = std::async(std::launch::async, [&] {
    return stream(cluster, "/v1/completions", raw_request(40, R"(,"stream":true)"));
  });
  ASSERT_TRUE(eventually([&] { return cluster.worker("decode-0").running() == 1; }));
  cluster.edit_view([](admin::RoutingView& view) { view.workers.clear(); });
  // A request that comes before the entrypoint has seen the new view is accepted, and waits for an
  // engine.
  HttpClient client;
  ASSERT_TRUE(eventually([&] { return client.get(cluster.url("/ready"))->status == 503; }));
  EXPECT_EQ(post(cluster, "/v1/completions", raw_request(5)).status, 503);
  EXPECT_EQ(result.get().text, text_behind(kPromptTokens, 40));
  EXPECT_EQ(cluster.metric("millrace_reroutes_total{reason=\"worker_lost\"}"), 0);
}

TEST(Entrypoint, DrainingRefusesNewRequestsAndFinishesRunningOnes) {
  FakeCluster cluster;
  cluster.start_workers();
  cluster.worker("decode-0").token_delay = 20ms;
  auto running = std::async(std::launch::async, [&] {
    return stream(cluster, "/v1/completions", raw_request(30, R"(,"stream":true)"));
  });
  ASSERT_TRUE(eventually([&] { return cluster.worker("decode-0").running() == 1; }));
  auto drained = std::make_shared<std::promise<void>>();
  std::future<void> is_drained = drained->get_future();
  cluster.drain([drained] { drained->set_value(); });
  HttpClient client;
  EXPECT_TRUE(eventually([&] { return client.get(cluster.url("/ready"))->status == 503; }));
  const HttpResponse refused = post(cluster, "/v1/completions", raw_request(5));
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(error_of(refused)["message"].get<std::string>(), HasSubstr("shutting down"));
  EXPECT_EQ(running.get().text, text_behind(kPromptTokens, 30));
  EXPECT_EQ(is_drained.wait_for(5s), std::future_status::ready);
  EXPECT_FALSE(client.get(cluster.url("/health")).ok());
}

TEST(Entrypoint, ManyRequestsOverSeveralWorkers) {
  FakeCluster cluster;
  cluster.start_workers();
  cluster.start_worker("decode-1", WorkerRole::kDecode);
  cluster.start_worker("prefill-1", WorkerRole::kPrefill);
  ASSERT_TRUE(eventually([&] {
    return cluster.metric("millrace_engine_workers{role=\"prefill\"}") == 2 &&
           cluster.metric("millrace_engine_workers{role=\"decode\"}") == 2;
  }));
  constexpr int kClients = 16;
  std::vector<std::future<int>> clients;
  clients.reserve(kClients);
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::async(std::launch::async, [&] {
      int good = 0;
      HttpClient client({.timeout = 60s});
      for (int j = 0; j < 10; ++j) {
        const auto response = client.post(cluster.url("/v1/completions"), raw_request(20));
        if (response.ok() && response->status == 200 &&
            (*parse_json(response->body))["choices"][0]["text"] == text_behind(kPromptTokens, 20)) {
          ++good;
        }
      }
      return good;
    }));
  }
  for (auto& client : clients) EXPECT_EQ(client.get(), 10);
  for (const char* id : {"decode-0", "decode-1", "prefill-0", "prefill-1"}) {
    EXPECT_GT(cluster.worker(id).starts(), 20) << id;
    EXPECT_EQ(cluster.worker(id).running(), 0) << id;
    EXPECT_EQ(cluster.worker(id).open_exports(), 0) << id;
  }
}

}  // namespace
}  // namespace millrace::api::entrypoint
