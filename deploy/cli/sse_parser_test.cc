#include "deploy/cli/sse_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::deploy::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> parse_in_pieces(std::string_view text, std::size_t piece_bytes) {
  SseParser parser;
  std::vector<std::string> all;
  for (std::size_t at = 0; at < text.size(); at += piece_bytes) {
    const absl::StatusOr<std::vector<std::string>> events =
        parser.feed(text.substr(at, piece_bytes));
    EXPECT_TRUE(events.ok());
    if (events.ok()) all.insert(all.end(), events->begin(), events->end());
  }
  return all;
}

// The examples of the HTML standard, section 9.2.6 ("Interpreting an event stream").
TEST(SseParser, ReadsTheExamplesOfTheStandardHoweverTheyAreCut) {
  const std::string_view joined = "data: YHOO\ndata: +2\ndata: 10\n\n";
  const std::string_view mixed =
      ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third "
      "event\n\n";
  const std::string_view empty = "data\n\ndata\ndata\n\ndata:";
  for (std::size_t bytes : {1, 2, 3, 7, 1000}) {
    EXPECT_THAT(parse_in_pieces(joined, bytes), ElementsAre("YHOO\n+2\n10"));
    EXPECT_THAT(parse_in_pieces(mixed, bytes),
                ElementsAre("first event", "second event", " third event"));
    EXPECT_THAT(parse_in_pieces(empty, bytes), ElementsAre("", "\n"));
  }
}

TEST(SseParser, TakesEveryKindOfLineEnd) {
  for (std::size_t bytes : {1, 2, 1000}) {
    EXPECT_THAT(parse_in_pieces("data: a\r\n\r\ndata: b\r\rdata: c\n\n", bytes),
                ElementsAre("a", "b", "c"));
  }
}

TEST(SseParser, KeepsAnUnfinishedEventToItself) {
  EXPECT_THAT(parse_in_pieces("data: half", 100), IsEmpty());
}

TEST(SseParser, RefusesAnEndlessEvent) {
  SseParser parser;
  const std::string piece(SseParser::kMaxEventBytes, 'x');
  EXPECT_TRUE(parser.feed(piece).ok());
  EXPECT_EQ(parser.feed("x").status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace millrace::deploy::cli
