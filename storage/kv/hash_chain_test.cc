#include "storage/kv/hash_chain.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "common/hex.h"
#include "common/json.h"

namespace millrace::storage::kv {
namespace {

struct Vector {
  Salt salt{};
  BlockKey root;
  std::vector<BlockKey> keys;
};

std::vector<std::uint8_t> from_hex(const std::string& text) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

Sha256Digest digest_from_hex(const std::string& text) {
  const std::vector<std::uint8_t> bytes = from_hex(text);
  Sha256Digest digest{};
  EXPECT_EQ(bytes.size(), digest.size());
  std::copy_n(bytes.begin(), digest.size(), digest.begin());
  return digest;
}

/// tests/data/storage/make_chain_vectors.py computes them from the drawing alone.
Json read_vectors() {
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/data/storage/chain_vectors.json");
  std::stringstream text;
  text << file.rdbuf();
  auto vectors = parse_json(text.str());
  EXPECT_TRUE(vectors.ok()) << vectors.status();
  return *std::move(vectors);
}

Vector compute(const Json& test) {
  Vector computed;
  const std::string user = test["user_id"].is_null() ? "" : test["user_id"].get<std::string>();
  computed.salt = account_salt(from_hex(test["cluster_secret"].get<std::string>()),
                               test["account"].get<std::string>(), user);
  computed.root =
      chain_root({.artifact_digest = digest_from_hex(test["artifact_digest"].get<std::string>()),
                  .layout_id = test["layout_id"].get<std::string>(),
                  .salt = computed.salt});
  std::vector<ImageSpan> images;
  for (const Json& image : test["images"])
    images.push_back({.first_token = image["first_token"].get<std::size_t>(),
                      .digest = digest_from_hex(image["digest"].get<std::string>())});
  computed.keys = chain_keys(computed.root, test["tokens"].get<std::vector<TokenId>>(), images);
  return computed;
}

TEST(HashChain, GivesTheVectorsOfAnIndependentScript) {
  const Json vectors = read_vectors();
  ASSERT_GT(vectors.size(), 20U);
  for (const Json& test : vectors) {
    SCOPED_TRACE(test["name"].get<std::string>());
    const Vector computed = compute(test);
    EXPECT_EQ(to_hex(computed.salt), test["salt"].get<std::string>());
    EXPECT_EQ(computed.root.hex(), test["root"].get<std::string>());
    ASSERT_EQ(computed.keys.size(), test["keys"].size());
    for (std::size_t i = 0; i < computed.keys.size(); ++i)
      EXPECT_EQ(computed.keys[i].hex(), test["keys"][i].get<std::string>());
  }
}

class NamedVectors : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const Json& test : read_vectors())
      by_name_[test["name"].get<std::string>()] = compute(test);
  }
  const Vector& at(const std::string& name) const { return by_name_.at(name); }

  std::map<std::string, Vector> by_name_;
};

TEST_F(NamedVectors, WhateverDiffersInTheRootSharesNoKey) {
  std::set<BlockKey> seen;
  for (const char* name :
       {"base", "another account", "another user", "another cluster", "framing: a + bc",
        "framing: ab + c", "framing: abc + nothing", "one weight byte", "another tokenizer",
        "another layout", "no layout name", "beyond ASCII", "no secret", "long secret"}) {
    const Vector& vector = at(name);
    EXPECT_EQ(vector.keys.size(), 2U) << name;
    EXPECT_TRUE(seen.insert(vector.root).second) << name;
    for (const BlockKey& key : vector.keys) EXPECT_TRUE(seen.insert(key).second) << name;
  }
}

TEST_F(NamedVectors, AnAbsentUserIsTheEmptyOne) {
  EXPECT_EQ(at("absent user is the empty one").keys, at("base").keys);
}

TEST_F(NamedVectors, AChangeLeavesTheBlocksBeforeItAlone) {
  const auto& base = at("base").keys;
  const auto& token = at("a changed token in the second block").keys;
  EXPECT_EQ(token[0], base[0]);
  EXPECT_NE(token[1], base[1]);
  const auto& image = at("the same image in the second block").keys;
  EXPECT_EQ(image[0], base[0]);
  EXPECT_NE(image[1], base[1]);
  const auto& early = at("an image in the first block").keys;
  EXPECT_NE(early[0], base[0]);
  EXPECT_NE(early[1], base[1]);
  EXPECT_NE(at("two images in a block").keys[0], at("the two images in the other order").keys[0]);
  EXPECT_EQ(at("an image behind the last full block").keys, base);
}

TEST(HashChain, OneByOneGivesTheKeysOfTheWhole) {
  std::vector<TokenId> tokens(5 * kBlockTokens + 17);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i * i);
  const BlockKey root = chain_root({.layout_id = "x"});
  const std::vector<BlockKey> keys = chain_keys(root, tokens);
  ASSERT_EQ(keys.size(), 5U);
  HashChain chain(root);
  EXPECT_EQ(chain.last(), root);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(chain.append(std::span(tokens).subspan(i * kBlockTokens, kBlockTokens)), keys[i]);
    EXPECT_EQ(chain.last(), keys[i]);
  }
  // A chain goes on from any key, without what came before.
  HashChain later(keys[2]);
  EXPECT_EQ(later.append(std::span(tokens).subspan(std::size_t{3} * kBlockTokens, kBlockTokens)),
            keys[3]);
}

}  // namespace
}  // namespace millrace::storage::kv
