#include "common/json.h"

#include <gtest/gtest.h>

#include "common/str_cat.h"

namespace millrace {
namespace {

TEST(ParseJson, KeepsKeyOrder) {
  auto value = parse_json(R"({"b":1,"a":2})");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(dump_json(*value), R"({"b":1,"a":2})");
}

TEST(ParseJson, NamesTheByteOfASyntaxError) {
  const auto value = parse_json(R"({"model": )");
  EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(message_of(value.status()).find("at byte 11"), std::string::npos) << value.status();
}

TEST(ParseJson, RefusesDeepNestingWithoutExhaustingTheStack) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_EQ(parse_json(deep).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(parse_json(std::string(64, '[') + std::string(64, ']')).ok());
  EXPECT_FALSE(parse_json(std::string(65, '[') + std::string(65, ']')).ok());
}

TEST(ParseJson, RefusesInvalidUtf8) { EXPECT_FALSE(parse_json("\"\xff\"").ok()); }

TEST(JsonAccess, NamesTheKeyAndTheType) {
  const Json object = {{"a", "text"}, {"n", 1.5}};
  EXPECT_EQ(json_string(object, "a").value(), "text");
  EXPECT_EQ(json_int(object, "n").status().message(), "\"n\" must be an integer");
  EXPECT_EQ(json_bool(object, "x").status().message(), "\"x\" must be true or false");
  EXPECT_EQ(json_number(object, "n").value(), 1.5);
}

}  // namespace
}  // namespace millrace
