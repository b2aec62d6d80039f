#include "deploy/cli/text_table.h"

#include <gtest/gtest.h>

namespace millrace::deploy::cli {
namespace {

TEST(TextTable, AlignsNumbersRightAndTextLeft) {
  TextTable table({"task", "right", "note"});
  table.add_row({"greeting", "9", "ok"});
  table.add_row({"süß", "120", "a b"});
  EXPECT_EQ(table.to_string(),
            "task      right  note\n"
            "greeting      9  ok\n"
            "süß         120  a b\n");
}

TEST(TextTable, WithoutRowsIsItsHeader) { EXPECT_EQ(TextTable({"a", "b"}).to_string(), "a  b\n"); }

TEST(Fixed, RoundsToTheDigits) {
  EXPECT_EQ(fixed(1.25, 1), "1.2");
  EXPECT_EQ(fixed(-0.5, 3), "-0.500");
}

}  // namespace
}  // namespace millrace::deploy::cli
