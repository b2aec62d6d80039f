#include "dataplane/cost/cost_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/str_cat.h"

namespace millrace::dataplane::cost {
namespace {

using ::testing::HasSubstr;

CostFile example() {
  return {.subject = {"nano", std::string(64, 'a'), "cpu", "two threads"},
          .source = "measured by hand",
          .prefill = {0.125, 0.25, 17, 1000, 33, 0.75},
          .decode = {1000, 10, 0.5},
          .prefill_error = 0.05,
          .decode_error = 0.04};
}

std::string error_of(const std::string& text) {
  return std::string(message_of(parse_cost_file(text, "x.json").status()));
}

/// The example with one piece of its text replaced.
std::string with(const std::string& from, const std::string& to) {
  std::string text = to_json_text(example());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(CostFile, IsReadBackAsItWasWritten) {
  const auto file = parse_cost_file(to_json_text(example()), "x.json");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*file, example());
}

TEST(CostFile, SaysWhatIsWrongWithIt) {
  EXPECT_THAT(error_of("{"), HasSubstr("cost file x.json"));
  EXPECT_THAT(error_of(with("\"format\": 2", "\"format\": 1")), HasSubstr("format is 1"));
  EXPECT_THAT(error_of(with("\"linear\": 17", "\"linear\": -17")), HasSubstr("linear = -17"));
  EXPECT_THAT(error_of(with("\"linear\": 17.0", "\"linear\": \"x\"")), HasSubstr("linear"));
  EXPECT_THAT(error_of(with("\"linear\"", "\"liner\"")), HasSubstr("unknown member liner"));
  EXPECT_THAT(error_of(with("\"per_kv_token\": 0.5", "\"per_kv_token\": 1e999")),
              HasSubstr("x.json"));
  EXPECT_THAT(error_of(with("aaaa\"", "aaa\"")), HasSubstr("artifact_digest"));
  EXPECT_THAT(error_of(with("\"prefill_error\": 0.05", "\"prefill_error\": -1")),
              HasSubstr("prefill_error"));
}

TEST(CostFile, OfAnotherCheckpointOrBackendIsRefusedWithBothNames) {
  const CostFile file = example();
  EXPECT_TRUE(check_subject(file, file.subject, "x.json").ok());
  CostSubject engine = file.subject;
  engine.machine = "other words for people";
  EXPECT_TRUE(check_subject(file, engine, "x.json").ok());
  engine.artifact_digest = std::string(64, 'b');
  const std::string message{message_of(check_subject(file, engine, "x.json"))};
  EXPECT_THAT(message, HasSubstr(file.subject.artifact_digest));
  EXPECT_THAT(message, HasSubstr(engine.artifact_digest));
  engine = file.subject;
  engine.backend = "cuda";
  EXPECT_EQ(check_subject(file, engine, "x.json").code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace millrace::dataplane::cost
