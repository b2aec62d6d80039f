#include "api/entrypoint/kv_names.h"

#include <gtest/gtest.h>

#include <numeric>

#include "common/hex.h"

namespace millrace::api::entrypoint {
namespace {

constexpr const char* kLayout = "layout/1";

Secret secret_of(std::uint8_t byte) {
  Secret secret{};
  secret.fill(byte);
  return secret;
}

Sha256Digest digest_of(std::uint8_t byte) {
  Sha256Digest digest{};
  digest.fill(byte);
  return digest;
}

recipe::PreparedRequest request_of(std::size_t prompt_tokens) {
  recipe::PreparedRequest request;
  request.prompt.resize(prompt_tokens);
  std::iota(request.prompt.begin(), request.prompt.end(), 10);
  return request;
}

TEST(KvNames, AreTheChainKeysOfModelLayoutAccountAndTokens) {
  KvNames names(secret_of(7));
  names.set_layout(kLayout);
  names.set_artifact(to_hex(digest_of(0xab)));
  recipe::PreparedRequest request = request_of(300);
  request.user_id = "user";
  request.further_prompts.push_back(request_of(128).prompt);
  const std::optional<RequestBlocks> blocks = names.name({"acme", std::nullopt}, request);
  ASSERT_TRUE(blocks);
  const storage::kv::Salt salt = storage::kv::account_salt(secret_of(7), "acme", "user");
  EXPECT_EQ(blocks->salt, salt);
  const storage::BlockKey root = storage::kv::chain_root(
      {.artifact_digest = digest_of(0xab), .layout_id = kLayout, .salt = salt});
  ASSERT_EQ(blocks->prompts.size(), 2U);
  EXPECT_EQ(blocks->prompts[0].prompt_tokens, 300U);
  EXPECT_EQ(blocks->prompts[0].keys, storage::kv::chain_keys(root, request.prompt));
  EXPECT_EQ(blocks->prompts[0].keys.size(), 2U);
  EXPECT_EQ(blocks->prompts[1].keys, storage::kv::chain_keys(root, request.further_prompts[0]));
}

TEST(KvNames, TwoAccountsTwoUsersAndTwoModelsShareNone) {
  KvNames names(secret_of(7));
  names.set_layout(kLayout);
  names.set_artifact(to_hex(digest_of(1)));
  recipe::PreparedRequest request = request_of(128);
  const auto key = [&](const std::string& account, const std::string& user) {
    request.user_id = user;
    return names.name({account, std::nullopt}, request)->prompts[0].keys[0];
  };
  const storage::BlockKey first = key("acme", "");
  EXPECT_EQ(key("acme", ""), first);
  EXPECT_NE(key("other", ""), first);
  EXPECT_NE(key("acme", "user"), first);
  EXPECT_NE(key("acm", "e"), first);
  names.set_artifact(to_hex(digest_of(2)));
  EXPECT_NE(key("acme", ""), first);
}

TEST(KvNames, WithoutAModelNothingHasAName) {
  KvNames names(secret_of(7));
  names.set_layout(kLayout);
  EXPECT_FALSE(names.name({}, request_of(128)));
  names.set_artifact("");
  EXPECT_FALSE(names.name({}, request_of(128)));
  names.set_artifact(to_hex(digest_of(1)));
  EXPECT_TRUE(names.name({}, request_of(128)));
  names.set_artifact("");
  EXPECT_FALSE(names.name({}, request_of(128)));
}

TEST(KvNames, AreThoseOfTheLayoutThatEnginesHave) {
  KvNames names(secret_of(7));
  names.set_artifact(to_hex(digest_of(1)));
  EXPECT_FALSE(names.name({}, request_of(128))) << "no engine has said one";
  names.set_layout(kLayout);
  const storage::BlockKey first = names.name({}, request_of(128))->prompts[0].keys[0];
  names.set_layout("layout/2");
  EXPECT_NE(names.name({}, request_of(128))->prompts[0].keys[0], first);
}

TEST(KvNames, TheTimeIsTheKeysElseThatOfAgentsWithToolsElseThatOfChats) {
  recipe::PreparedRequest request;
  EXPECT_EQ(ttl_of({}, request), storage::TtlClass::kChatbot);
  request.has_tools = true;
  EXPECT_EQ(ttl_of({}, request), storage::TtlClass::kAgent);
  EXPECT_EQ(ttl_of({"a", storage::TtlClass::kChatbot}, request), storage::TtlClass::kChatbot);
}

}  // namespace
}  // namespace millrace::api::entrypoint
