#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "api/entrypoint/fake_cluster.h"
#include "api/entrypoint/fake_store.h"
#include "api/entrypoint/test_client.h"
#include "api/proto/engine.pb.h"
#include "common/crypto/secret_file.h"
#include "common/hex.h"
#include "common/json.h"
#include "common/str_cat.h"
#include "dataplane/kv/hit_policy.h"
#include "storage/kv/hash_chain.h"

namespace millrace::api::entrypoint {
namespace {

using namespace std::chrono_literals;
using storage::BlockKey;
using test::FakeCluster;
using test::FakeStore;
using test::post;
using test::Received;
using test::stream;

std::vector<TokenId> prompt_of(std::size_t tokens) {
  std::vector<TokenId> prompt(tokens);
  std::iota(prompt.begin(), prompt.end(), 10);
  return prompt;
}

std::string completion(const std::vector<TokenId>& prompt, const std::string& more = "",
                       int max_tokens = 3) {
  return str_cat(R"({"model":"nano","max_tokens":)", max_tokens, R"(,"prompt":)",
                 dump_json(Json(prompt)), more, "}");
}

/// As the entrypoint has to name them, by the contract of storage/kv/hash_chain.h.
std::vector<BlockKey> keys_of(const std::vector<TokenId>& prompt, std::string_view account = "",
                              std::string_view user = "") {
  Secret secret{};
  secret.fill(7);
  storage::kv::RootInputs inputs;
  EXPECT_TRUE(from_hex(test::artifact_digest_hex(), inputs.artifact_digest));
  inputs.layout_id = test::kKvLayout;
  inputs.salt = storage::kv::account_salt(secret, account, user);
  return storage::kv::chain_keys(storage::kv::chain_root(inputs), prompt);
}

std::vector<BlockKey> first(const std::vector<BlockKey>& keys, std::ptrdiff_t count) {
  return {keys.begin(), keys.begin() + count};
}

Json usage_of(const common::http::HttpResponse& response) {
  EXPECT_EQ(response.status, 200) << response.body;
  return (*parse_json(response.body))["usage"];
}

/// A cluster that stores KV, and an entrypoint that knows it.
class KvRoutes : public ::testing::Test {
 protected:
  void start(test::ClusterOptions options = {}) {
    options.has_secret = true;
    options.store = &store_;
    cluster_ = std::make_unique<FakeCluster>(options);
    cluster_->start_workers();
    // The storage map comes by itself, sooner or later.
    ASSERT_TRUE(test::eventually([&] {
      post(*cluster_, "/v1/completions", completion(prompt_of(3)));
      return !scopes("prefill-0").back().salt().empty();
    }));
  }

  std::vector<proto::v1::KvScope> scopes(const std::string& worker) {
    std::vector<proto::v1::KvScope> parsed;
    for (const std::string& bytes : cluster_->worker(worker).kv_scopes()) {
      EXPECT_TRUE(parsed.emplace_back().ParseFromString(bytes));
    }
    return parsed;
  }

  FakeStore store_;
  std::unique_ptr<FakeCluster> cluster_;
};

TEST_F(KvRoutes, AHitIsFoundByTheNamesOfItsBlocksAndToldToTheEngines) {
  start();
  const std::vector<TokenId> prompt = prompt_of(600);
  const std::vector<BlockKey> keys = keys_of(prompt);
  ASSERT_EQ(keys.size(), 4U);
  store_.plant(first(keys, 2));
  const Json usage = usage_of(post(*cluster_, "/v1/completions", completion(prompt)));
  EXPECT_EQ(usage["prompt_tokens"], 600);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 256);

  const proto::v1::KvScope prefill = scopes("prefill-0").back();
  EXPECT_EQ(prefill.hit_tokens(), 256U);
  EXPECT_EQ(prefill.ttl_class(), static_cast<std::uint32_t>(storage::TtlClass::kChatbot));
  Secret secret{};
  secret.fill(7);
  const storage::kv::Salt salt = storage::kv::account_salt(secret, "", "");
  EXPECT_EQ(prefill.salt(), std::string(salt.begin(), salt.end()));
  const proto::v1::KvScope decode = scopes("decode-0").back();
  EXPECT_EQ(decode.salt(), prefill.salt());
  EXPECT_EQ(decode.hit_tokens(), 0U);

  const std::set<BlockKey> used(keys.begin(), keys.begin() + 2);
  EXPECT_TRUE(test::eventually([&] { return store_.touched() == used; }));
  EXPECT_EQ(cluster_->metric("millrace_prefix_hit_tokens_total"), 256);
  EXPECT_GE(cluster_->metric("millrace_prefix_query_tokens_total"), 600);
  EXPECT_EQ(cluster_->metric("millrace_kv_check_total{result=\"hit\"}"), 1);
}

TEST_F(KvRoutes, TwoUsersShareNoName) {
  start();
  const std::vector<TokenId> prompt = prompt_of(600);
  store_.plant(keys_of(prompt));
  const Json other =
      usage_of(post(*cluster_, "/v1/completions", completion(prompt, R"(,"user":"b")")));
  EXPECT_EQ(other["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_NE(scopes("prefill-0").back().salt(), scopes("prefill-0").front().salt());
  const std::vector<BlockKey> theirs = keys_of(prompt, "", "b");
  const std::vector<BlockKey> ours = keys_of(prompt);
  for (const auto& [key, times] : store_.asked()) {
    EXPECT_THAT(theirs, testing::Contains(key));
    EXPECT_THAT(ours, testing::Not(testing::Contains(key)));
  }
}

TEST_F(KvRoutes, WhomEachProtocolNamesAsTheUserPartsTheKv) {
  start();
  Secret secret{};
  secret.fill(7);
  const std::string messages = R"("messages":[{"role":"user","content":"Hi"}])";
  const std::pair<std::string, std::string> requests[] = {
      {"/v1/completions", R"("prompt":"Hi","user":"u","max_tokens":3)"},
      {"/v1/chat/completions", messages + R"(,"user":"u","max_tokens":3)"},
      {"/v1/chat/completions", messages + R"(,"user":"v","safety_identifier":"u","max_tokens":3)"},
      {"/v1/responses", R"("input":"Hi","user":"u","max_output_tokens":16)"},
      {"/v1/responses",
       R"("input":"Hi","user":"v","safety_identifier":"u","max_output_tokens":16)"},
      {"/v1/messages", messages + R"(,"max_tokens":3,"metadata":{"user_id":"u"})"}};
  const storage::kv::Salt salt = storage::kv::account_salt(secret, "", "u");
  for (const auto& [path, members] : requests) {
    const auto response = post(*cluster_, path, R"({"model":"nano",)" + members + "}");
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(scopes("prefill-0").back().salt(), std::string(salt.begin(), salt.end()))
        << path << " " << members;
  }
}

TEST_F(KvRoutes, AStoreThatDoesNotAnswerInTimeIsAMissAndNoFailure) {
  start({.check_timeout = 30ms});
  store_.plant_everything();
  store_.set_silent(true);
  const Json usage = usage_of(post(*cluster_, "/v1/completions", completion(prompt_of(600))));
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_FALSE(scopes("prefill-0").back().salt().empty()) << "its KV is stored all the same";
  EXPECT_EQ(cluster_->metric("millrace_kv_check_total{result=\"timeout\"}"), 1);
  store_.set_silent(false);
}

TEST_F(KvRoutes, EveryProtocolTellsWhatWasCached) {
  start();
  store_.plant_everything();
  std::string text;
  for (int i = 0; i < 300; ++i) text += str_cat(" mill ", i);
  const auto expected = [](int prompt_tokens) {
    return dataplane::kv::usable_hit(prompt_tokens, prompt_tokens / 128 * 128);
  };
  const std::string messages = str_cat(R"([{"role":"user","content":")", text, R"("}])");

  const Json chat =
      usage_of(post(*cluster_, "/v1/chat/completions",
                    str_cat(R"({"model":"nano","max_tokens":3,"n":2,"messages":)", messages, "}")));
  const int prompt_tokens = chat["prompt_tokens"];
  ASSERT_GT(prompt_tokens, 400);
  EXPECT_EQ(chat["prompt_tokens_details"]["cached_tokens"], expected(prompt_tokens));

  const Json responses =
      usage_of(post(*cluster_, "/v1/responses",
                    str_cat(R"({"model":"nano","max_output_tokens":3,"input":")", text, R"("})")));
  EXPECT_EQ(responses["input_tokens_details"]["cached_tokens"],
            expected(responses["input_tokens"]));

  const std::string message = str_cat(R"({"model":"nano","max_tokens":3,"messages":)", messages);
  const Json claude = usage_of(post(*cluster_, "/v1/messages", message + "}"));
  const int read = claude["cache_read_input_tokens"];
  EXPECT_EQ(read, expected(prompt_tokens));
  EXPECT_EQ(claude["input_tokens"], prompt_tokens - read) << "beside what was read, not with it";
  EXPECT_EQ(claude["cache_creation_input_tokens"], 0);

  const Received events = stream(*cluster_, "/v1/messages", message + R"(,"stream":true})");
  ASSERT_FALSE(events.data.empty());
  const Json begin = (*parse_json(events.data.front()))["message"]["usage"];
  EXPECT_EQ(begin["cache_read_input_tokens"], read);
  EXPECT_EQ(begin["input_tokens"], prompt_tokens - read);

  const Received chunks =
      stream(*cluster_, "/v1/chat/completions",
             str_cat(R"({"model":"nano","max_tokens":3,"stream":true,)",
                     R"("stream_options":{"include_usage":true},"messages":)", messages, "}"));
  EXPECT_THAT(chunks.raw, testing::HasSubstr(str_cat(R"("cached_tokens":)", read)));
}

TEST_F(KvRoutes, ARequestThatBeginsAgainLooksForTheSameAndCountsWhatItFirstFound) {
  start();
  store_.plant_everything();
  cluster_->worker("decode-0").token_delay = 20ms;
  const std::string body =
      completion(prompt_of(600), R"(,"stream":true,"stream_options":{"include_usage":true})", 12);
  bool has_killed = false;
  const Received received =
      stream(*cluster_, "/v1/completions", body, [&](const std::string& so_far) {
        if (!has_killed && so_far.find("data:") != std::string::npos) {
          has_killed = true;
          cluster_->worker("prefill-0").reports_hits = false;
          cluster_->kill_worker("decode-0");
          cluster_->start_worker("decode-0", admin::WorkerRole::kDecode);
        }
        return true;
      });
  EXPECT_EQ(received.status, 200);
  EXPECT_THAT(received.raw, testing::HasSubstr(R"("cached_tokens":384)"));
  const auto prefills = scopes("prefill-0");
  ASSERT_GE(prefills.size(), 2U);
  EXPECT_EQ(prefills.back().SerializeAsString(), prefills[prefills.size() - 2].SerializeAsString());
  EXPECT_EQ(prefills.back().hit_tokens(), 384U);
}

TEST_F(KvRoutes, AWindowThatARequestLeftIsToldToThoseThatCanBeginWithIt) {
  start();
  cluster_->edit_view([](admin::RoutingView& view) {
    view.entrypoints = {{"entrypoint-0", 1, "127.0.0.1:1"}};  // its own shard: nobody is called
  });
  const std::vector<TokenId> prompt = prompt_of(600);
  const std::vector<BlockKey> keys = keys_of(prompt);
  store_.plant(keys);
  // The hit ends at 384: the windows there and a block before it are of use, others are not.
  ASSERT_TRUE(test::eventually([&] {
    for (std::uint32_t block = 0; block < keys.size(); ++block) {
      cluster_->worker("decode-0").leave_window(keys[block], (block + 1) * 128);
    }
    post(*cluster_, "/v1/completions", completion(prompt));
    return scopes("prefill-0").back().windows_size() == 2;
  }));
  const proto::v1::KvScope scope = scopes("prefill-0").back();
  EXPECT_EQ(scope.windows(0).anchor(), 384U);
  EXPECT_EQ(scope.windows(1).anchor(), 256U);
  EXPECT_EQ(scope.windows(0).ref().host_id(), "host-0");
  EXPECT_EQ(scope.windows(0).ref().slot(), 5U);
  EXPECT_EQ(scopes("decode-0").back().windows_size(), 0);
}

TEST_F(KvRoutes, ExplainSaysWhatIsStoredAndUsesNothing) {
  start();
  store_.plant_everything();
  std::string text;
  for (int i = 0; i < 300; ++i) text += str_cat(" mill ", i);
  const std::string body =
      str_cat(R"({"model":"nano","messages":[{"role":"user","content":")", text, R"("}]})");
  const int starts = cluster_->worker("prefill-0").starts();
  const auto response = post(*cluster_, "/v1/kv/explain", body);
  ASSERT_EQ(response.status, 200) << response.body;
  const Json found = *parse_json(response.body);
  const int prompt_tokens = found["prompt_tokens"];
  const int hit = dataplane::kv::usable_hit(prompt_tokens, prompt_tokens / 128 * 128);
  ASSERT_GT(hit, 256);
  EXPECT_EQ(found["stores_kv"], true);
  EXPECT_EQ(found["blocks"], prompt_tokens / 128);
  EXPECT_EQ(found["hit_tokens"], hit);
  EXPECT_EQ(found["start"], "truncated_replay") << "no window is there";
  EXPECT_EQ(found["compute_start"], hit - 128);
  EXPECT_EQ(found["tokens_to_run"]["cold"], prompt_tokens);
  EXPECT_EQ(found["tokens_to_run"]["now"], prompt_tokens - hit + 128);
  EXPECT_EQ(cluster_->worker("prefill-0").starts(), starts);
  EXPECT_TRUE(store_.touched().empty());
  EXPECT_EQ(post(*cluster_, "/v1/kv/explain", R"({"model":"nano"})").status, 400);
}

TEST_F(KvRoutes, ToolsMakeItAnAgentsRequest) {
  start();
  const auto response = post(
      *cluster_, "/v1/chat/completions",
      R"({"model":"nano","max_tokens":3,"messages":[{"role":"user","content":"x"}],)"
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]})");
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(scopes("prefill-0").back().ttl_class(),
            static_cast<std::uint32_t>(storage::TtlClass::kAgent));
}

TEST(KvRoutesWithout, TheSecretOrTheStoreNothingIsSaidOfKv) {
  FakeStore store;
  for (const bool has_secret : {false, true}) {
    // With the secret, but in a cluster that stores nothing; and the other way round.
    FakeCluster cluster({.has_secret = has_secret, .store = has_secret ? nullptr : &store});
    cluster.start_workers();
    EXPECT_EQ(post(cluster, "/v1/completions", completion(prompt_of(600))).status, 200);
    EXPECT_EQ(cluster.worker("prefill-0").kv_scopes(), std::vector<std::string>{""});
    EXPECT_EQ(cluster.worker("decode-0").kv_scopes(), std::vector<std::string>{""});
    const auto explained = post(cluster, "/v1/kv/explain",
                                R"({"model":"nano","messages":[{"role":"user","content":"Hi"}]})");
    const Json found = *parse_json(explained.body);
    EXPECT_EQ(found["stores_kv"], false);
    EXPECT_EQ(found["start"], "cold");
  }
  EXPECT_TRUE(store.asked().empty());
}

}  // namespace
}  // namespace millrace::api::entrypoint
