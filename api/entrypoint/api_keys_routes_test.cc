#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/entrypoint/api_keys.h"
#include "api/entrypoint/fake_cluster.h"
#include "api/entrypoint/test_client.h"
#include "common/hex.h"
#include "common/http/http_client.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

using common::http::HttpClient;
using common::http::HttpResponse;
using test::FakeCluster;

std::shared_ptr<const ApiKeys> two_accounts() {
  std::string text;
  for (const auto& [key, account] : {std::pair{"key-a", "acme"}, std::pair{"key-b", "other"}}) {
    Sha256 hash;
    hash.update(key);
    text +=
        str_cat("[[key]]\nsha256 = \"", to_hex(hash.finish()), "\"\naccount = \"", account, "\"\n");
  }
  return std::make_shared<const ApiKeys>(*ApiKeys::parse(text));
}

class ApiKeyRoutes : public ::testing::Test {
 protected:
  HttpResponse send(const std::string& method, const std::string& path, const std::string& header,
                    const std::string& body = "") {
    HttpClient client({.timeout = std::chrono::seconds(60)});
    common::http::HttpRequest request;
    request.method = method;
    request.url = cluster_.url(path);
    request.body = body;
    if (!header.empty()) {
      const std::size_t colon = header.find(": ");
      request.headers.push_back({header.substr(0, colon), header.substr(colon + 2)});
    }
    const auto response = client.send(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *response : HttpResponse{};
  }

  FakeCluster cluster_{{.api_keys = two_accounts()}};
};

TEST_F(ApiKeyRoutes, WithoutAKeyNothingIsServedButHealthAndMetrics) {
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize",
                           "/detokenize", "/v1/responses/resp_1/cancel"}) {
    const HttpResponse response = send("POST", path, "", "{}");
    EXPECT_EQ(response.status, 401) << path;
    EXPECT_EQ(test::error_of(response)["type"], "invalid_request_error") << path;
    EXPECT_EQ(send("POST", path, "Authorization: Bearer wrong", "{}").status, 401) << path;
  }
  for (const char* path : {"/v1/messages", "/v1/messages/count_tokens"}) {
    const HttpResponse response = send("POST", path, "x-api-key: wrong", "{}");
    EXPECT_EQ(response.status, 401) << path;
    const Json body = *parse_json(response.body);
    EXPECT_EQ(body["type"], "error");
    EXPECT_EQ(body["error"]["type"], "authentication_error");
    EXPECT_FALSE(body["request_id"].get<std::string>().empty());
  }
  for (const char* path : {"/v1/models", "/v1/models/nano", "/v1/responses/resp_1"}) {
    EXPECT_EQ(send("GET", path, "").status, 401) << path;
  }
  EXPECT_EQ(send("DELETE", "/v1/responses/resp_1", "").status, 401);
  EXPECT_EQ(test::error_of(send("GET", "/v1/models", "x-api-key: wrong"))["code"],
            "invalid_api_key");
  EXPECT_EQ(send("GET", "/health", "").status, 200);
  EXPECT_EQ(send("GET", "/metrics", "").status, 200);
  EXPECT_NE(send("GET", "/ready", "").status, 401);
  EXPECT_GT(cluster_.metric("millrace_requests_refused_total{reason=\"unauthenticated\"}"), 0);
}

TEST_F(ApiKeyRoutes, WithAKeyInEitherHeaderEverythingIs) {
  cluster_.start_workers();
  const std::string body = R"({"model":"nano","prompt":[5,6,7],"max_tokens":3})";
  EXPECT_EQ(send("POST", "/v1/completions", "Authorization: Bearer key-a", body).status, 200);
  EXPECT_EQ(send("POST", "/v1/completions", "x-api-key: key-b", body).status, 200);
  EXPECT_EQ(send("GET", "/v1/models/nano", "x-api-key: key-b").status, 200);
}

TEST_F(ApiKeyRoutes, OtherKeysAreTakenFromTheNextRequestOn) {
  EXPECT_EQ(send("GET", "/v1/models", "x-api-key: key-a").status, 200);
  cluster_.set_api_keys(std::make_shared<const ApiKeys>());
  EXPECT_EQ(send("GET", "/v1/models", "x-api-key: key-a").status, 401);
  cluster_.set_api_keys(two_accounts());
  EXPECT_EQ(send("GET", "/v1/models", "x-api-key: key-a").status, 200);
}

TEST_F(ApiKeyRoutes, AStoredResponseIsItsAccountsAlone) {
  cluster_.start_workers();
  const std::string ours = "Authorization: Bearer key-a";
  const std::string theirs = "Authorization: Bearer key-b";
  const HttpResponse made = send("POST", "/v1/responses", ours,
                                 R"({"model":"nano","input":"Hi","max_output_tokens":16})");
  ASSERT_EQ(made.status, 200) << made.body;
  const auto id = (*parse_json(made.body))["id"].get<std::string>();
  const std::string path = "/v1/responses/" + id;
  EXPECT_EQ(send("GET", path, ours).status, 200);
  EXPECT_EQ(send("GET", path, theirs).status, 404);
  EXPECT_EQ(send("GET", path + "/input_items", theirs).status, 404);
  EXPECT_EQ(send("POST", path + "/cancel", theirs).status, 404);
  EXPECT_EQ(send("DELETE", path, theirs).status, 404);
  const std::string next = str_cat(R"({"model":"nano","input":"And?","max_output_tokens":16,)",
                                   R"("previous_response_id":")", id, R"("})");
  EXPECT_EQ(send("POST", "/v1/responses", theirs, next).status, 404);
  EXPECT_EQ(send("POST", "/v1/responses", ours, next).status, 200);
  EXPECT_EQ(send("DELETE", path, ours).status, 200);
}

TEST_F(ApiKeyRoutes, AResponseInTheBackgroundIsItsAccountsAlone) {
  cluster_.start_workers();
  cluster_.worker("decode-0").token_delay = std::chrono::milliseconds(50);
  const HttpResponse made =
      send("POST", "/v1/responses", "x-api-key: key-a",
           R"({"model":"nano","input":"Hi","max_output_tokens":40,"background":true})");
  ASSERT_EQ(made.status, 200) << made.body;
  const std::string path = "/v1/responses/" + (*parse_json(made.body))["id"].get<std::string>();
  EXPECT_EQ(send("GET", path, "x-api-key: key-b").status, 404);
  EXPECT_EQ(send("POST", path + "/cancel", "x-api-key: key-b").status, 404);
  EXPECT_EQ(send("POST", path + "/cancel", "x-api-key: key-a").status, 200);
}

}  // namespace
}  // namespace millrace::api::entrypoint
