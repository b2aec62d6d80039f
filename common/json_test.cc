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

TEST(ParseJson, RefusesAMemberThatOccursTwiceInOneObject) {
  for (const char* text :
       {R"({"seed":1,"seed":2})", R"([{"a":{"b":1},"seed":1,"seed":1}])",
        R"({"a":[{"x":1},{"seed":{},"x":1,"seed":{}}]})", R"({"seed":1,"s\u0065ed":1})"}) {
    const auto value = parse_json(text);
    EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(value.status().message(), "the member \"seed\" occurs twice in an object") << text;
  }
  // The same name in other objects is another member.
  EXPECT_TRUE(parse_json(R"({"a":{"a":[{"a":1},{"a":2}]},"b":{"a":1},"A":0})").ok());
}

TEST(ParseJson, BoundsTheMembersOfAnObject) {
  const auto object_of = [](std::size_t count) {
    std::string text = "{";
    for (std::size_t i = 0; i < count; ++i) text += str_cat(i == 0 ? "" : ",", "\"", i, "\":[]");
    return text + "}";
  };
  EXPECT_TRUE(parse_json(object_of(2048)).ok());
  EXPECT_EQ(parse_json(object_of(2049)).status().message(),
            "a JSON object has more than 2048 members");
  EXPECT_TRUE(parse_json(object_of(2049), {.max_members = 2049}).ok());
  // Nothing past the limit is kept: without it, reading this would take the better part of an hour.
  EXPECT_FALSE(parse_json(object_of(1'000'000)).ok());
}

TEST(ParseJson, ANulDoesNotEndTheText) {
  using namespace std::string_view_literals;
  for (const std::string_view text : {"{}\0"sv, "{}\0garbage"sv, "{\"a\0\":1}"sv, "\0"sv}) {
    const auto value = parse_json(text);
    EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(message_of(value.status()).find("NUL"), std::string::npos) << value.status();
  }
  // An escaped one is a character like any other.
  EXPECT_EQ(parse_json(R"("a\u0000b")")->get<std::string>(), "a\0b"sv);
}

TEST(JsonAccess, NamesTheKeyAndTheType) {
  const Json object = {{"a", "text"}, {"n", 1.5}};
  EXPECT_EQ(json_string(object, "a").value(), "text");
  EXPECT_EQ(json_int(object, "n").status().message(), "\"n\" must be an integer");
  EXPECT_EQ(json_bool(object, "x").status().message(), "\"x\" must be true or false");
  EXPECT_EQ(json_number(object, "n").value(), 1.5);
}

}  // namespace
}  // namespace millrace
