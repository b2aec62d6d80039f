#include "api/entrypoint/entrypoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "api/entrypoint/fake_cluster.h"
#include "api/entrypoint/test_client.h"
#include "common/http/http_client.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

using namespace std::chrono_literals;
using admin::WorkerRole;
using common::http::HttpClient;
using common::http::HttpResponse;
using test::error_of;
using test::eventually;
using test::FakeCluster;
using test::kPromptTokens;
using test::post;
using test::raw_request;
using test::Received;
using test::stream;
using test::text_behind;
using testing::HasSubstr;

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

TEST(Entrypoint, ReportsDemandAndWhatPrefillCosts) {
  FakeCluster cluster;
  cluster.edit_view([](admin::RoutingView& view) {
    view.prefill_cost = admin::PublishedCost{1, {.linear = 10, .fixed = 4}};
  });
  cluster.start_workers();
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(post(cluster, "/v1/completions", raw_request(1)).status, 200);
  }
  ASSERT_TRUE(eventually([&] {
    const auto report = admin::parse_entrypoint_report(cluster.last_report());
    return report.ok() && report->demand_ns == std::vector<std::uint64_t>{68, 0, 0, 0} &&
           report->costs.size() == 1;
  })) << cluster.last_report();
  const admin::EntrypointReport report = *admin::parse_entrypoint_report(cluster.last_report());
  EXPECT_GT(report.incarnation, 0U);
  EXPECT_EQ(report.costs[0].worker_id, "prefill-0");
  EXPECT_EQ(report.costs[0].cost.linear, 1000);
  EXPECT_EQ(cluster.metric("millrace_prefill_claims_answered_total{answer=\"granted\"}"), 2);
}

TEST(Entrypoint, GreetsWorkersThatRestartWithThePublishedCost) {
  FakeCluster cluster;
  cluster.start_workers();
  ASSERT_EQ(post(cluster, "/v1/completions", raw_request(1)).status, 200);
  EXPECT_EQ(cluster.worker("prefill-0").greeted_row_ns(), 0) << "none is published yet";
  cluster.edit_view([](admin::RoutingView& view) {
    view.prefill_cost = admin::PublishedCost{1, {.linear = 10, .fixed = 4}};
  });
  cluster.kill_worker("prefill-0");
  cluster.start_worker("prefill-0", WorkerRole::kPrefill);
  EXPECT_TRUE(eventually([&] { return cluster.worker("prefill-0").greeted_row_ns() == 10; }));
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

TEST(Entrypoint, AWorkerWhoseLoadMakesNoSenseIsGivenNothing) {
  FakeCluster cluster;
  cluster.start_worker("prefill-0", WorkerRole::kPrefill).is_lying = true;
  cluster.start_worker("decode-0", WorkerRole::kDecode);
  ASSERT_TRUE(
      eventually([&] { return cluster.metric("millrace_engine_workers{role=\"decode\"}") == 1; }));
  std::this_thread::sleep_for(100ms);  // a few reports
  const HttpResponse response = post(cluster, "/v1/completions", raw_request(1));
  EXPECT_EQ(response.status, 503) << response.body;
  EXPECT_THAT(response.body, HasSubstr("no prefill engine"));
  cluster.worker("prefill-0").is_lying = false;
  ASSERT_TRUE(cluster.wait_until_ready());
  EXPECT_EQ(post(cluster, "/v1/completions", raw_request(1)).status, 200);
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
  EXPECT_TRUE(eventually([&] { return cluster.metric("millrace_open_charges") == 20; }));
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
  EXPECT_TRUE(eventually([&] { return cluster.metric("millrace_open_charges") == 0; }));
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
  EXPECT_TRUE(eventually([&] { return cluster.metric("millrace_open_charges") == 0; }));
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
  EXPECT_TRUE(eventually([&] { return cluster.metric("millrace_open_charges") == 0; }));
}

}  // namespace
}  // namespace millrace::api::entrypoint
