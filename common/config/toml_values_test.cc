#include "common/config/toml_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/str_cat.h"

namespace millrace::common::config {
namespace {

using ::testing::HasSubstr;

TEST(TomlValues, AreFlatWithPathsAndLines) {
  const auto values = parse_toml_values(
      "name = \"a\"\n"
      "[prefill]\n"
      "ranks = 8\n"
      "shares = [0.5, 1]\n"
      "[[fault]]\n"
      "is_on = true\n"
      "[[fault]]\n"
      "at = 2\n");
  ASSERT_TRUE(values.ok()) << values.status();
  std::vector<std::string> keys;
  keys.reserve(values->size());
  for (const TomlValue& value : *values) keys.push_back(str_cat(value.key, "@", value.line));
  EXPECT_THAT(keys, ::testing::UnorderedElementsAre("name@1", "prefill.ranks@3",
                                                    "prefill.shares.0@4", "prefill.shares.1@4",
                                                    "fault.0.is_on@6", "fault.1.at@8"));
}

TEST(TomlValues, ErrorsNameTheLine) {
  EXPECT_THAT(std::string(message_of(parse_toml_values("a = 1\nb = \n").status())),
              HasSubstr("line 2: is no TOML"));
  EXPECT_THAT(std::string(message_of(parse_toml_values("a = 1\na = 2\n").status())),
              HasSubstr("line 2"));
  EXPECT_THAT(std::string(message_of(parse_toml_values("d = 2026-01-02\n").status())),
              HasSubstr("line 1: d is a date"));
}

}  // namespace
}  // namespace millrace::common::config
