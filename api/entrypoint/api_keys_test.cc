#include "api/entrypoint/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/hex.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

using ::testing::HasSubstr;

std::string hex_digest(std::string_view key) {
  Sha256 hash;
  hash.update(key);
  return to_hex(hash.finish());
}

std::string record(std::string_view key, std::string_view rest) {
  return str_cat("[[key]]\nsha256 = \"", hex_digest(key), "\"\n", rest);
}

std::string error_of(std::string_view text) {
  return std::string(message_of(ApiKeys::parse(text).status()));
}

TEST(ApiKeys, FindTheAccountOfAKeyAndNobodyForAnother) {
  const auto keys = ApiKeys::parse(str_cat(record("one", "account = \"acme\"\nclass = \"agent\"\n"),
                                           record("two", "account = \"acme\"\n"),
                                           record("three", "account = \"b\"\n")));
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->find("one"), (Caller{"acme", storage::TtlClass::kAgent}));
  EXPECT_EQ(keys->find("two"), (Caller{"acme", std::nullopt}));
  EXPECT_EQ(keys->find("three")->account, "b");
  EXPECT_FALSE(keys->find("four"));
  EXPECT_FALSE(keys->find(""));
  EXPECT_FALSE(keys->find(hex_digest("one"))) << "the digest is no key";
  EXPECT_FALSE(keys->find(std::string(1 << 20, 'x')));
}

TEST(ApiKeys, ErrorsNameTheLineAndWhatIsAllowed) {
  EXPECT_THAT(error_of("[[key]]\nsha256 = \"12\"\naccount = \"a\"\n"),
              HasSubstr("line 2: \"sha256\" must have 64 hexadecimal digits"));
  EXPECT_THAT(error_of(record("one", "account = \"\"\n")), HasSubstr("line 3: \"account\""));
  EXPECT_THAT(error_of(record("one", "account = \"a\"\nclass = \"bot\"\n")),
              HasSubstr("line 4: \"class\" must be \"agent\" or \"chatbot\""));
  EXPECT_THAT(
      error_of(str_cat(record("one", "account = \"a\"\n"), record("one", "account = \"b\"\n"))),
      HasSubstr("line 5: this key is in the file already"));
  EXPECT_THAT(error_of(record("one", "")), HasSubstr("sha256, account and, if wanted, class"));
}

TEST(ApiKeys, AFilesErrorsNameTheFile) {
  const std::string path = str_cat(::testing::TempDir(), "api_keys.", ::getpid());
  EXPECT_THAT(std::string(message_of(ApiKeys::open(path).status())), HasSubstr(path));
  std::ofstream(path) << "[[key]]\n";
  EXPECT_THAT(std::string(message_of(ApiKeys::open(path).status())), HasSubstr(path + ": line 1"));
  std::filesystem::remove(path);
}

TEST(ApiKeys, ARequestCarriesItsKeyInEitherHeader) {
  common::http::ServerRequest request;
  EXPECT_EQ(key_of(request), "");
  request.headers = {{"authorization", "bearer sk-1"}};
  EXPECT_EQ(key_of(request), "sk-1");
  request.headers = {{"x-api-key", "sk-2"}};
  EXPECT_EQ(key_of(request), "sk-2");
  request.headers = {{"authorization", "Basic abc"}};
  EXPECT_EQ(key_of(request), "");
}

}  // namespace
}  // namespace millrace::api::entrypoint
