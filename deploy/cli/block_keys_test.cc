#include "deploy/cli/block_keys.h"

#include <gtest/gtest.h>

#include "common/str_cat.h"
#include "storage/kv/hash_chain.h"

namespace millrace::deploy::cli {
namespace {

const std::string kNano = std::string(MILLRACE_SOURCE_DIR) + "/deploy/models/nano";

TEST(CheckedPrompt, ReadsTokensOrKeys) {
  const CheckedPrompt tokens = *parse_checked_prompt(" [1, 2, 99092]\n");
  EXPECT_EQ(tokens.tokens, (std::vector<TokenId>{1, 2, 99092}));
  const std::string key(62, 'a');
  const CheckedPrompt keys = *parse_checked_prompt(str_cat(key, "0F\n\n", key, "10\r\n"));
  ASSERT_EQ(keys.keys.size(), 2U);
  EXPECT_EQ(keys.keys[0].bytes[0], 0xaa);
  EXPECT_EQ(keys.keys[0].bytes[31], 0x0f);
  EXPECT_EQ(keys.keys[1].hex(), key + "10");
}

TEST(CheckedPrompt, WhatIsNeitherIsNamed) {
  const auto error = [](std::string_view text) {
    return std::string(message_of(parse_checked_prompt(text).status()));
  };
  EXPECT_NE(error("").find("is empty"), std::string::npos);
  EXPECT_NE(error("[1, -2]").find("item 1"), std::string::npos);
  EXPECT_NE(error("[1, 2.5]").find("item 1"), std::string::npos);
  EXPECT_NE(error("[1, 2147483648]").find("item 1"), std::string::npos);
  EXPECT_NE(error("abc\n").find("line 1 has 3"), std::string::npos);
  EXPECT_NE(error(std::string(64, 'a') + "\n" + std::string(64, 'g')).find("line 2"),
            std::string::npos);
}

TEST(BlockKeys, DependOnAccountUserAndSecretAndAreThoseOfTheChain) {
  api::admin::DesiredState desired;
  desired.model_dir = kNano;
  std::vector<TokenId> tokens(300, 7);
  const ClusterSecret secret{1};
  const auto keys = *block_keys(desired, secret, "acme", "", tokens);
  ASSERT_EQ(keys.size(), 2U);
  EXPECT_NE(keys, *block_keys(desired, secret, "acm", "e", tokens));
  EXPECT_NE(keys, *block_keys(desired, secret, "acme", "u", tokens));
  EXPECT_NE(keys, *block_keys(desired, ClusterSecret{2}, "acme", "", tokens));
  desired.engine = "rounding=off";
  EXPECT_NE(keys, *block_keys(desired, secret, "acme", "", tokens)) << "another layout of KV";
}

TEST(BlockKeys, ABlockOfNanoIsSmallerThanOneOfFloats) {
  EXPECT_LT(kv_sizes(kNano, "")->block, kv_sizes(kNano, "rounding=off")->block);
  EXPECT_LT(kv_sizes(kNano, "")->window, kv_sizes(kNano, "rounding=off")->window);
  EXPECT_FALSE(kv_sizes(kNano, "speed=11").ok());
  EXPECT_TRUE(absl::IsNotFound(kv_sizes("/no/such/folder", "").status()));
}

}  // namespace
}  // namespace millrace::deploy::cli
