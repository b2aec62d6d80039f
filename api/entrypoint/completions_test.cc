#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/entrypoint/fake_cluster.h"
#include "common/http/http_client.h"
#include "common/json.h"

namespace millrace::api::entrypoint {
namespace {

using common::http::HttpClient;
using common::http::HttpResponse;
using test::FakeCluster;
using test::text_behind;

HttpResponse post(const FakeCluster& cluster, const std::string& path, const std::string& body) {
  HttpClient client({.timeout = std::chrono::seconds(60)});
  const auto response = client.post(cluster.url(path), body);
  EXPECT_TRUE(response.ok()) << response.status();
  return response.ok() ? *response : HttpResponse{};
}

Json answer(const FakeCluster& cluster, const std::string& path, const std::string& body) {
  const HttpResponse response = post(cluster, path, body);
  EXPECT_EQ(response.status, 200) << response.body;
  const auto json = parse_json(response.body);
  EXPECT_TRUE(json.ok()) << response.body;
  return json.ok() ? *json : Json();
}

TEST(Completions, EveryPromptOfABatchIsAnswered) {
  FakeCluster cluster;
  cluster.start_workers();
  const Json body =
      answer(cluster, "/v1/completions",
             R"({"model":"nano","prompt":[[5,6,7],[5,6]],"n":2,"max_tokens":4,"echo":true})");
  ASSERT_EQ(body["choices"].size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const std::vector<TokenId> prompt = i < 2 ? std::vector<TokenId>{5, 6, 7} : std::vector{5, 6};
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"],
              cluster.tokenizer().decode(prompt) + text_behind(prompt.size(), 4));
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(body["usage"]["completion_tokens"], 16);
}

TEST(Completions, ASuffixIsPartOfThePrompt) {
  FakeCluster cluster;
  cluster.start_workers();
  const Json without =
      answer(cluster, "/v1/completions", R"({"model":"nano","prompt":"a","max_tokens":4})");
  const Json with = answer(cluster, "/v1/completions",
                           R"({"model":"nano","prompt":"a","suffix":"b","max_tokens":4})");
  const auto tokens = with["usage"]["prompt_tokens"].get<std::size_t>();
  // The suffix and three tokens around the two texts.
  EXPECT_EQ(tokens, without["usage"]["prompt_tokens"].get<std::size_t>() + 4);
  EXPECT_EQ(with["choices"][0]["text"], text_behind(tokens, 4));
}

TEST(Completions, TokensAreToldWithoutAnyEngine) {
  const FakeCluster cluster({.context_tokens = 77});
  const Json tokens = answer(cluster, "/tokenize",
                             R"({"model":"nano","prompt":"Hi there","return_token_strs":true})");
  EXPECT_EQ(tokens["max_model_len"], 77);
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(tokens["token_strs"].size(), tokens["tokens"].size());
  const Json text = answer(cluster, "/detokenize", R"({"tokens":)" + tokens["tokens"].dump() + "}");
  EXPECT_EQ(text["prompt"], "<｜begin▁of▁sentence｜>Hi there");
  const Json chat = answer(cluster, "/tokenize",
                           R"({"model":"nano","messages":[{"role":"user","content":"Hi"}]})");
  EXPECT_GT(chat["count"], 3);
}

TEST(Completions, MistakesNameTheField) {
  const FakeCluster cluster;
  const std::tuple<const char*, const char*, const char*> mistakes[] = {
      {"/tokenize", R"({"model":"nano"})", "prompt"},
      {"/detokenize", R"({"tokens":[-1]})", "tokens[0]"},
      {"/v1/completions", R"({"model":"nano","prompt":[1],"suffix":"b"})", "suffix"},
      {"/v1/completions", R"({"model":"nano","prompt":"a","best_of":2})", "best_of"},
  };
  for (const auto& [path, body, field] : mistakes) {
    SCOPED_TRACE(body);
    const HttpResponse response = post(cluster, path, body);
    EXPECT_EQ(response.status, 400);
    EXPECT_EQ((*parse_json(response.body))["error"]["param"], field);
  }
}

}  // namespace
}  // namespace millrace::api::entrypoint
