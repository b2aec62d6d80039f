#include "common/config/toml_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/str_cat.h"

namespace millrace::common::config {
namespace {

using ::testing::HasSubstr;

const TomlRecordRules kRules{.name = "key", .required = {"name", "owner"}, .optional = {"class"}};

std::string error_of(std::string_view text) {
  return std::string(message_of(parse_toml_records(text, kRules).status()));
}

TEST(TomlRecords, AreReadInTheirOrderWithTheirLines) {
  const auto records = parse_toml_records(
      "# who may come in\n"
      "[[key]]\n"
      "name = \"a\"\n"
      "owner = 'x y'\n"
      "\n"
      "[[key]]\n"
      "owner = \"z\"\n"
      "name = \"b\"  # the second\n"
      "class = \"agent\"\n",
      kRules);
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_EQ(records->size(), 2U);
  EXPECT_EQ((*records)[0].members.at("owner"), "x y");
  EXPECT_FALSE((*records)[0].members.contains("class"));
  EXPECT_EQ((*records)[1].members.at("name"), "b");
  EXPECT_EQ((*records)[1].line, 6);
  EXPECT_EQ((*records)[1].lines.at("class"), 9);
}

TEST(TomlRecords, AnEmptyFileHasNone) {
  EXPECT_EQ(parse_toml_records("", kRules)->size(), 0U);
  EXPECT_EQ(parse_toml_records("# nothing\n", kRules)->size(), 0U);
}

TEST(TomlRecords, EveryErrorNamesTheLineAndWhatIsAllowed) {
  EXPECT_THAT(error_of("[[key]]\nname = \"a\"\nowner = \"b\"\ncolour = \"c\"\n"),
              HasSubstr("line 4: \"colour\" is not known; a [[key]] has name, owner and, if "
                        "wanted, class"));
  EXPECT_THAT(error_of("[[key]]\nname = \"a\"\n"), HasSubstr("line 1: \"owner\" is missing"));
  EXPECT_THAT(error_of("[[key]]\nname = 3\nowner = \"b\"\n"),
              HasSubstr("line 2: \"name\" must be text"));
  EXPECT_THAT(error_of("[[lock]]\nname = \"a\"\n"), HasSubstr("only [[key]] is allowed"));
  EXPECT_THAT(error_of("key = 3\n"), HasSubstr("only [[key]] is allowed"));
  EXPECT_THAT(error_of("[[key]]\nname = \"a\n"), HasSubstr("line 2"));
  EXPECT_THAT(error_of("[[key]]\nname = \"a\"\nname = \"b\"\n"), HasSubstr("line 3"));
}

}  // namespace
}  // namespace millrace::common::config
