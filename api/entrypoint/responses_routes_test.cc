#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <future>

#include "api/entrypoint/fake_cluster.h"
#include "common/http/http_client.h"
#include "common/json.h"
#include "common/sqlite/sqlite.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

using namespace std::chrono_literals;
using common::http::HttpClient;
using common::http::HttpResponse;
using test::eventually;
using test::FakeCluster;
using test::text_behind;
using testing::HasSubstr;

std::string body_of(const std::string& members) {
  const bool has_limit = members.find("max_output_tokens") != std::string::npos;
  return str_cat(R"({"model":"nano","input":"Hi")", has_limit ? "" : R"(,"max_output_tokens":12)",
                 members.empty() ? "" : ",", members, "}");
}

class ResponsesRoutes : public testing::Test {
 protected:
  void start(const test::ClusterOptions& options = {}) {
    cluster_ = std::make_unique<FakeCluster>(options);
    cluster_->start_workers();
  }

  HttpResponse post(const std::string& path, const std::string& body) {
    const auto response = client_.post(cluster_->url(path), body);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *response : HttpResponse{};
  }
  HttpResponse get(const std::string& path) {
    const auto response = client_.get(cluster_->url(path));
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *response : HttpResponse{};
  }
  HttpResponse del(const std::string& path) {
    const auto response = client_.del(cluster_->url(path));
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *response : HttpResponse{};
  }

  /// A whole answer, which must have succeeded.
  Json create(const std::string& members) {
    const HttpResponse response = post("/v1/responses", body_of(members));
    EXPECT_EQ(response.status, 200) << response.body;
    return *parse_json(response.body);
  }
  static std::string path_of(const Json& response) {
    return "/v1/responses/" + response["id"].get<std::string>();
  }
  static Json error_of(const HttpResponse& response) {
    return (*parse_json(response.body))["error"];
  }

  /// The events of a stream, as far as `go_on` lets it come.
  std::vector<Json> stream(
      const std::string& method, const std::string& path, const std::string& body,
      const std::function<bool(const std::string&)>& go_on = [](const std::string&) {
        return true;
      }) {
    HttpClient client({.timeout = 60s});
    common::http::HttpRequest request;
    request.method = method;
    request.url = cluster_->url(path);
    request.body = body;
    std::string raw;
    const auto response = client.stream(request, [&](std::string_view piece) {
      raw.append(piece);
      return go_on(raw);
    });
    status_ = response.ok() ? response->status : 0;
    std::vector<Json> events;
    for (std::size_t at = 0; (at = raw.find("data: ", at)) != std::string::npos;) {
      const std::size_t end = raw.find("\n\n", at);
      if (end == std::string::npos) break;
      events.push_back(*parse_json(raw.substr(at + 6, end - at - 6)));
      at = end;
    }
    return events;
  }

  /// Numbers of events that follow each other, from a first one.
  static void check_numbers(const std::vector<Json>& events, int first) {
    for (const Json& event : events) EXPECT_EQ(event["sequence_number"], first++);
  }

  std::unique_ptr<FakeCluster> cluster_;
  HttpClient client_{{.timeout = 60s}};
  int status_ = 0;
};

TEST_F(ResponsesRoutes, AnswersAndKeepsTheAnswer) {
  start();
  const Json response = create(R"("metadata":{"k":"v"})");
  EXPECT_THAT(response["id"].get<std::string>(),
              testing::AllOf(testing::StartsWith("resp_"), testing::EndsWith("_entrypoint-0")));
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  const auto prompt_tokens = response["usage"]["input_tokens"].get<std::size_t>();
  EXPECT_EQ(response["output"][0]["content"][0]["text"], text_behind(prompt_tokens, 12));
  EXPECT_EQ(response["usage"]["output_tokens"], 12);

  const HttpResponse again = get(path_of(response));
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(*parse_json(again.body), response);
  const Json items = *parse_json(get(path_of(response) + "/input_items?limit=5").body);
  EXPECT_EQ(items["data"].size(), 1u);
  EXPECT_EQ(items["data"][0]["content"][0]["text"], "Hi");
  EXPECT_EQ(error_of(get(path_of(response) + "/input_items?limit=0"))["param"], "limit");

  const HttpResponse deleted = del(path_of(response));
  EXPECT_EQ(deleted.status, 200);
  EXPECT_EQ((*parse_json(deleted.body))["deleted"], true);
  EXPECT_EQ(get(path_of(response)).status, 404);
  EXPECT_EQ(del(path_of(response)).status, 404);
  EXPECT_EQ(get(path_of(create(R"("store":false)"))).status, 404);
}

TEST_F(ResponsesRoutes, StreamsEventsInOrder) {
  start();
  const std::vector<Json> events = stream("POST", "/v1/responses", body_of(R"("stream":true)"));
  ASSERT_EQ(status_, 200);
  check_numbers(events, 0);
  std::string types;
  std::string text;
  for (const Json& event : events) {
    const auto type = event["type"].get<std::string>();
    if (type == "response.output_text.delta") {
      text += event["delta"].get<std::string>();
    } else {
      types += type.substr(9);
      types += ' ';
    }
  }
  EXPECT_EQ(types,
            "created in_progress output_item.added content_part.added output_text.done "
            "content_part.done output_item.done incomplete ");
  const Json& response = events.back()["response"];
  EXPECT_EQ(text, text_behind(response["usage"]["input_tokens"].get<std::size_t>(), 12));
  EXPECT_EQ(*parse_json(get(path_of(response)).body), response);
}

TEST_F(ResponsesRoutes, ContinuesAnEarlierAnswer) {
  start();
  const Json first = create(R"("instructions":"Be long and thorough in everything you say.")");
  const Json second = create(R"("previous_response_id":)" + first["id"].dump());
  EXPECT_EQ(second["previous_response_id"], first["id"]);
  const Json items = *parse_json(get(path_of(second) + "/input_items?order=asc").body);
  ASSERT_EQ(items["data"].size(), 3u);
  EXPECT_EQ(items["data"][1], first["output"][0]);
  EXPECT_EQ(second["instructions"], nullptr);
  // The first answer may go: the second one holds what it needs.
  del(path_of(first));
  EXPECT_EQ(create(R"("previous_response_id":)" + second["id"].dump())["status"], "incomplete");

  const HttpResponse gone =
      post("/v1/responses", body_of(R"("previous_response_id":)" + first["id"].dump()));
  EXPECT_EQ(gone.status, 404);
  EXPECT_EQ(error_of(gone)["param"], "previous_response_id");
  EXPECT_EQ(error_of(gone)["code"], "previous_response_not_found");
}

TEST_F(ResponsesRoutes, AnIdNamesTheEntrypointThatHasIt) {
  start();
  const HttpResponse other = get("/v1/responses/resp_0123_entrypoint-7");
  EXPECT_EQ(other.status, 404);
  EXPECT_THAT(error_of(other)["message"].get<std::string>(),
              testing::AllOf(HasSubstr("'entrypoint-7'"), HasSubstr("'entrypoint-0'")));
  const HttpResponse previous =
      post("/v1/responses", body_of(R"("previous_response_id":"resp_0123_entrypoint-7")"));
  EXPECT_EQ(previous.status, 404);
  EXPECT_THAT(error_of(previous)["message"].get<std::string>(), HasSubstr("'entrypoint-7'"));
  EXPECT_EQ(get("/v1/responses/nonsense").status, 404);
  EXPECT_EQ(get("/v1/responses/resp_0123_entrypoint-0/nonsense").status, 404);
  EXPECT_EQ(post("/v1/responses/resp_0123_entrypoint-0/cancel", "").status, 404);
}

TEST_F(ResponsesRoutes, RefusesWhatIsWrongInTheErrorForm) {
  start();
  const HttpResponse response = post("/v1/responses", R"({"model":"nano","input":42})");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(error_of(response)["param"], "input");
  EXPECT_EQ(error_of(response)["type"], "invalid_request_error");
  EXPECT_EQ(post("/v1/responses", "{").status, 400);
}

TEST_F(ResponsesRoutes, ABackgroundResponseIsPolled) {
  start();
  cluster_->worker("decode-0").token_delay = 5ms;
  const Json queued = create(R"("background":true)");
  EXPECT_EQ(queued["status"], "queued");
  EXPECT_EQ(queued["output"].size(), 0u);
  EXPECT_EQ((*parse_json(get(path_of(queued) + "/input_items").body))["data"].size(), 1u);
  Json response;
  ASSERT_TRUE(eventually([&] {
    response = *parse_json(get(path_of(queued)).body);
    return response["status"] == "incomplete";
  }));
  const auto prompt_tokens = response["usage"]["input_tokens"].get<std::size_t>();
  EXPECT_EQ(response["output"][0]["content"][0]["text"], text_behind(prompt_tokens, 12));
  // One that is over stays as it is.
  EXPECT_EQ(*parse_json(post(path_of(queued) + "/cancel", "").body), response);
}

TEST_F(ResponsesRoutes, ABackgroundResponseIsCancelled) {
  start();
  cluster_->worker("decode-0").token_delay = 50ms;
  const Json queued = create(R"("background":true,"max_output_tokens":2000)");
  ASSERT_TRUE(eventually(
      [&] { return (*parse_json(get(path_of(queued)).body))["status"] == "in_progress"; }));
  const HttpResponse busy =
      post("/v1/responses", body_of(R"("previous_response_id":)" + queued["id"].dump()));
  EXPECT_EQ(busy.status, 400);
  const Json cancelled = *parse_json(post(path_of(queued) + "/cancel", "").body);
  EXPECT_EQ(cancelled["status"], "cancelled");
  EXPECT_TRUE(eventually([&] { return cluster_->worker("decode-0").running() == 0; }, 1000ms));
  EXPECT_EQ((*parse_json(get(path_of(queued)).body))["status"], "cancelled");
  const HttpResponse dead =
      post("/v1/responses", body_of(R"("previous_response_id":)" + queued["id"].dump()));
  EXPECT_EQ(dead.status, 400);
  EXPECT_THAT(error_of(dead)["message"].get<std::string>(), HasSubstr("cancelled"));

  const Json plain = create("");
  const HttpResponse refused = post(path_of(plain) + "/cancel", "");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(error_of(refused)["message"].get<std::string>(), HasSubstr("synchronous"));

  const Json dropped = create(R"("background":true,"max_output_tokens":2000)");
  EXPECT_EQ(del(path_of(dropped)).status, 200);
  EXPECT_EQ(get(path_of(dropped)).status, 404);
  EXPECT_TRUE(eventually([&] { return cluster_->worker("decode-0").running() == 0; }, 1000ms));
}

TEST_F(ResponsesRoutes, ABackgroundStreamIsTakenUpAgain) {
  start();
  cluster_->worker("decode-0").token_delay = 20ms;
  const std::vector<Json> begun = stream(
      "POST", "/v1/responses", body_of(R"("background":true,"stream":true)"),
      [](const std::string& raw) { return raw.find("content_part.added") == std::string::npos; });
  ASSERT_GE(begun.size(), 2u);
  check_numbers(begun, 0);
  const std::string path = path_of(begun[0]["response"]);
  // While it is generated, and when it is over.
  for (int i = 0; i < 2; ++i) {
    const std::vector<Json> rest = stream("GET", path + "?stream=true&starting_after=1", "");
    ASSERT_FALSE(rest.empty());
    check_numbers(rest, 2);
    EXPECT_EQ(rest.back()["type"], "response.incomplete");
    ASSERT_TRUE(eventually([&] { return cluster_->worker("decode-0").running() == 0; }));
  }
  EXPECT_EQ(error_of(get(path_of(create("")) + "?stream=true"))["param"], "stream");
}

TEST_F(ResponsesRoutes, AClientThatHangsUpEndsAForegroundResponse) {
  start();
  cluster_->worker("decode-0").token_delay = 20ms;
  stream("POST", "/v1/responses", body_of(R"("stream":true,"max_output_tokens":2000)"),
         [](const std::string& raw) { return raw.size() < 3000; });
  HttpClient impatient({.timeout = 300ms});
  EXPECT_FALSE(
      impatient.post(cluster_->url("/v1/responses"), body_of(R"("max_output_tokens":2000)")).ok());
  EXPECT_TRUE(eventually([&] { return cluster_->worker("decode-0").running() == 0; }, 1000ms));
  EXPECT_EQ(cluster_->metric("millrace_requests_total{outcome=\"cancelled\"}"), 2);
}

TEST_F(ResponsesRoutes, ALockedStoreFailsThatRequestAlone) {
  const auto folder = std::filesystem::temp_directory_path() / str_cat("millrace-rr-", ::getpid());
  std::filesystem::create_directory(folder);
  const std::string file = folder / "responses.sqlite";
  start({.response_store = file});
  const Json kept = create("");
  auto other = common::sqlite::Database::open(file);
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(other->execute("BEGIN IMMEDIATE").ok());
  const HttpResponse refused = post("/v1/responses", body_of(""));
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(error_of(refused)["message"].get<std::string>(), HasSubstr("locked"));
  const std::vector<Json> events = stream("POST", "/v1/responses", body_of(R"("stream":true)"));
  ASSERT_FALSE(events.empty());
  check_numbers(events, 0);
  EXPECT_EQ(events.back()["type"], "response.failed");
  EXPECT_THAT(events.back()["response"]["error"]["message"].get<std::string>(),
              HasSubstr("locked"));
  EXPECT_EQ(create(R"("store":false)")["status"], "incomplete");
  EXPECT_EQ(get(path_of(kept)).status, 200);
  ASSERT_TRUE(other->execute("ROLLBACK").ok());
  EXPECT_EQ(create("")["status"], "incomplete");
  EXPECT_EQ(cluster_->metric("millrace_response_store_failures_total{operation=\"write\"}"), 2);
  // The file outlives the process.
  cluster_ = nullptr;
  start({.response_store = file});
  EXPECT_EQ(*parse_json(get(path_of(kept)).body), kept);
  cluster_ = nullptr;
  std::filesystem::remove_all(folder);
}

TEST_F(ResponsesRoutes, ARequestThatNoEngineTakesIsRefusedInAnyForm) {
  cluster_ = std::make_unique<FakeCluster>();
  for (const char* members :
       {"", R"("stream":true)", R"("background":true)", R"("background":true,"stream":true)"}) {
    EXPECT_EQ(post("/v1/responses", body_of(members)).status, 503) << members;
  }
}

TEST_F(ResponsesRoutes, ADeadlineFailsABackgroundResponse) {
  start({.request_deadline = 300ms});
  cluster_->worker("prefill-0").token_delay = 10'000ms;
  const Json queued = create(R"("background":true)");
  Json response;
  ASSERT_TRUE(eventually([&] {
    response = *parse_json(get(path_of(queued)).body);
    return response["status"] == "failed";
  }));
  EXPECT_FALSE(response["error"]["message"].get<std::string>().empty());
}

}  // namespace
}  // namespace millrace::api::entrypoint
