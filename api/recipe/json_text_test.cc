#include "api/recipe/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "common/json.h"

namespace millrace::api::recipe {
namespace {

// Printed by Python 3's json.dumps(json.loads(text), ensure_ascii=False).
TEST(PythonJson, PrintsWhatPythonPrints) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"a":1,"b":[1,2,{}],"c":[]})", R"({"a": 1, "b": [1, 2, {}], "c": []})"},
      {" [ true , false,null ] ", "[true, false, null]"},
      {"[0.00001, 1.5e-7, 1E16, 100000.0, 1e5, 123456789012345680.0]",
       "[1e-05, 1.5e-07, 1e+16, 100000.0, 100000.0, 1.2345678901234568e+17]"},
      {"[0.1, -0.0, -0, 1.0, 0.0001, 1e22, 5e-324, 2.5e100]",
       "[0.1, -0.0, 0, 1.0, 0.0001, 1e+22, 5e-324, 2.5e+100]"},
      {"[18446744073709551615, -9223372036854775808, 123456789012345678901234567890]",
       "[18446744073709551615, -9223372036854775808, 123456789012345678901234567890]"},
      {R"("\u00e9\ud83d\ude00\/\b\f\n\r\t\u0001\u007f\"\\")",
       "\"\xC3\xA9\xF0\x9F\x98\x80/\\b\\f\\n\\r\\t\\u0001\x7F\\\"\\\\\""},
      {R"({"k":1,"l":2,"k":3})", R"({"k": 3, "l": 2})"},
  };
  for (const auto& [given, expected] : cases) {
    const auto actual = python_json(given);
    ASSERT_TRUE(actual.ok()) << given << actual.status();
    EXPECT_EQ(*actual, expected);
  }
}

TEST(PythonJson, KeepsTheTextOfWhatADoubleCannotHold) {
  EXPECT_EQ(*python_json("[1e400,-1e999, 1e-400]"), "[1e400, -1e999, 1e-400]");
}

TEST(PythonJson, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "[1,]", "{\"a\":}", "01", "1.", "+1", "nul", "\"\\x\"",
                           "\"\\ud800\"", "\"a", "1 2", "NaN", "'a'", "{\"a\" 1}", "\"\n\""}) {
    EXPECT_FALSE(python_json(text).ok()) << text;
  }
  EXPECT_TRUE(python_json(std::string(60, '[') + std::string(60, ']')).ok());
  EXPECT_FALSE(python_json(std::string(70, '[') + std::string(70, ']')).ok());
}

TEST(PythonJson, FloatsReadBackAsTheSameNumber) {
  std::uint64_t bits = 1;
  for (int i = 0; i < 20000; ++i) {
    bits = bits * 6364136223846793005u + 1442695040888963407u;
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isfinite(value)) continue;
    const std::string text = *python_json(Json(value).dump());
    EXPECT_EQ(parse_json(text)->get<double>(), value) << text;
  }
}

TEST(RawMembers, AreViewsOfTheText) {
  const std::string text = R"( {"a" : 1e400, "b\n": {"x":[1, 2]} , "c":"}"} )";
  const auto members = raw_members(text);
  ASSERT_TRUE(members.ok()) << members.status();
  ASSERT_EQ(members->size(), 3u);
  EXPECT_EQ((*members)[0].value, "1e400");
  EXPECT_EQ((*members)[1].name, "b\n");
  EXPECT_EQ((*members)[1].value, R"({"x":[1, 2]})");
  EXPECT_EQ(string_value((*members)[2].value), "}");
  EXPECT_EQ(string_value("1"), std::nullopt);
  EXPECT_FALSE(raw_members("[1]").ok());
  const auto elements = raw_elements("[1, [2], \"3\"]");
  ASSERT_TRUE(elements.ok());
  EXPECT_THAT(*elements, testing::ElementsAre("1", "[2]", "\"3\""));
}

TEST(RawMembers, SkipAByteOrderMark) {
  EXPECT_EQ(raw_member("\xEF\xBB\xBF {\"a\": [1]}", "a"), "[1]");
}

TEST(ClampNumbers, MakesNoJsonOfWhatIsNone) {
  for (const char* text : {"1e400-5", "01e400", "1.e400", "1e400e1", "[1e400.5]"}) {
    EXPECT_EQ(clamp_numbers(text), std::nullopt) << text;
  }
}

TEST(ClampNumbers, ReplacesOnlyWhatOverflows) {
  EXPECT_EQ(clamp_numbers(R"({"a":1,"b":1e308,"c":1e-400,"d":"1e999"})"), std::nullopt);
  const auto clamped = clamp_numbers(R"({"a":-1e400,"b":"\"1e999","c":2})");
  ASSERT_TRUE(clamped);
  const auto value = parse_json(*clamped);
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ((*value)["a"], -std::numeric_limits<double>::max());
  EXPECT_EQ((*value)["b"], "\"1e999");
  EXPECT_EQ((*value)["c"], 2);
}

}  // namespace
}  // namespace millrace::api::recipe
