#include "deploy/cli/up_reporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

namespace millrace::deploy::cli {
namespace {

using ::testing::ElementsAre;

/// Writes down what it hears.
class Listener final : public UpReporter {
 public:
  void step(std::string_view text) override { heard.push_back("step " + std::string(text)); }
  void ready(std::string_view text) override { heard.push_back("ready " + std::string(text)); }
  void failed(std::string_view text) override { heard.push_back("failed " + std::string(text)); }
  std::vector<std::string> heard;
};

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends.data()), 0); }
  ~Pipe() { close(ends[0]); }
  std::array<int, 2> ends{};
};

TEST(UpReporter, ReportsComeThroughAPipeUpToTheEnd) {
  Pipe pipe;
  auto reporter = make_pipe_reporter(pipe.ends[1]);
  reporter->step("one");
  reporter->step("two");
  reporter->failed("first line\nsecond line");
  reporter->step("after the end");
  Listener listener;
  EXPECT_TRUE(relay_reports(pipe.ends[0], -1, listener));
  EXPECT_THAT(listener.heard,
              ElementsAre("step one", "step two", "failed first line\nsecond line"));
}

TEST(UpReporter, AWriterThatDiesIsNoticed) {
  Pipe pipe;
  make_pipe_reporter(pipe.ends[1])->step("one");
  Listener listener;
  EXPECT_FALSE(relay_reports(pipe.ends[0], -1, listener));
  EXPECT_THAT(listener.heard, ElementsAre("step one"));
}

TEST(UpReporter, ReadingEndsWhenItIsTold) {
  Pipe pipe;
  Pipe stop;
  ASSERT_EQ(write(stop.ends[1], "x", 1), 1);
  auto reporter = make_pipe_reporter(pipe.ends[1]);
  Listener listener;
  EXPECT_FALSE(relay_reports(pipe.ends[0], stop.ends[0], listener));
  close(stop.ends[1]);
}

}  // namespace
}  // namespace millrace::deploy::cli
