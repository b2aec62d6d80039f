#include "common/log/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST(Log, WritesOneLineOfEventAndFields) {
  std::vector<std::string> lines;
  const Logger log = Logger::to_sink("worker", LogLevel::kInfo,
                                     [&](std::string_view line) { lines.emplace_back(line); });
  log.info("request_routed",
           {{"request_id", "r-1"}, {"rank", 3}, {"bytes", 5u}, {"load", 0.25}, {"ok", true}});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0],
              MatchesRegex("[0-9]+-[0-9]+-[0-9]+T[0-9:]+\\.[0-9]+Z info worker event=.*"));
  EXPECT_THAT(lines[0],
              EndsWith("event=request_routed request_id=r-1 rank=3 bytes=5 load=0.25 ok=true"));
}

TEST(Log, QuotesWhatWouldBreakTheLine) {
  std::vector<std::string> lines;
  const Logger log = Logger::to_sink("worker", LogLevel::kInfo,
                                     [&](std::string_view line) { lines.emplace_back(line); });
  log.warn("x", {{"a", "two words"}, {"b", "line\nbreak \"q\" \\ \x01"}, {"c", ""}, {"d", "k=v"}});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(
      lines[0],
      EndsWith(
          R"( warn worker event=x a="two words" b="line\nbreak \"q\" \\ \u0001" c="" d="k=v")"));
}

TEST(Log, BracesInTextAreNotAFormat) {
  std::vector<std::string> lines;
  const Logger log = Logger::to_sink("worker", LogLevel::kInfo,
                                     [&](std::string_view line) { lines.emplace_back(line); });
  log.info("x", {{"a", "{}{0}%v"}});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], EndsWith("a={}{0}%v"));
}

TEST(Log, LeavesOutWhatIsBelowTheLevel) {
  std::vector<std::string> lines;
  const Logger log = Logger::to_sink("worker", LogLevel::kWarn,
                                     [&](std::string_view line) { lines.emplace_back(line); });
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): the copy is what is tested.
  const Logger copy = log;
  log.debug("a");
  log.info("b");
  copy.warn("c");
  copy.error("d");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], HasSubstr(" warn "));
  EXPECT_THAT(lines[1], HasSubstr(" error "));
}

TEST(Log, ParsesEveryLevelNameAndRefusesOthers) {
  for (const char* name : {"debug", "info", "warn", "error", "off"}) {
    EXPECT_TRUE(parse_log_level(name).ok()) << name;
  }
  const auto bad = parse_log_level("loud");
  EXPECT_EQ(bad.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad.status().message()), HasSubstr("\"loud\""));
}

}  // namespace
}  // namespace millrace
