#include "agent/supervisor/bounded_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/mapped_file.h"

namespace millrace::agent::supervisor {
namespace {

class BoundedLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "bounded_log_test_XXXXXX";
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ + "/w.log";
    writer_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }
  void TearDown() override {
    close(writer_);
    std::filesystem::remove_all(folder_);
  }
  void append(std::string_view text) {
    ASSERT_EQ(write(writer_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  std::string folder_;
  std::string path_;
  int writer_ = -1;
};

TEST_F(BoundedLogTest, TheLastLineIsTheLastThatIsNotBlank) {
  BoundedLog log(path_, 1000);
  log.begin_run();
  EXPECT_EQ(log.last_line(), "");
  append("first\nsecond\n");
  EXPECT_EQ(log.last_line(), "second");
  append(" \t\r\n\n");
  EXPECT_EQ(log.last_line(), "second");
  append("unfinished");
  EXPECT_EQ(log.last_line(), "unfinished");
}

TEST_F(BoundedLogTest, LinesOfAnEarlierRunDoNotCount) {
  BoundedLog log(path_, 1000);
  append("earlier\n");
  log.begin_run();
  EXPECT_EQ(log.last_line(), "");
  append("now\n");
  EXPECT_EQ(log.last_line(), "now");
}

TEST_F(BoundedLogTest, AnEndlessLineIsCut) {
  BoundedLog log(path_, 1'000'000);
  log.begin_run();
  append("short\n" + std::string(100'000, 'x'));
  EXPECT_EQ(log.last_line(), std::string(500, 'x'));
}

TEST_F(BoundedLogTest, GrowsToItsBoundAndThenBeginsAnewWhileTheWriterGoesOn) {
  BoundedLog log(path_, 100);
  log.begin_run();
  append(std::string(100, 'a'));
  ASSERT_TRUE(log.rotate_if_large().ok());
  EXPECT_EQ(std::filesystem::file_size(path_), 100u) << "at the bound, not over it";
  append("b\n");
  ASSERT_TRUE(log.rotate_if_large().ok());
  EXPECT_EQ(std::filesystem::file_size(path_), 0u);
  EXPECT_EQ(*read_file(path_ + ".1"), std::string(100, 'a') + "b\n");
  append("after\n");
  EXPECT_EQ(*read_file(path_), "after\n");
  EXPECT_EQ(log.last_line(), "after");
  append(std::string(200, 'c'));
  ASSERT_TRUE(log.rotate_if_large().ok());
  EXPECT_EQ(*read_file(path_ + ".1"), "after\n" + std::string(200, 'c'));
}

TEST_F(BoundedLogTest, AMissingFileIsEmpty) {
  BoundedLog log(folder_ + "/none.log", 100);
  log.begin_run();
  EXPECT_TRUE(log.rotate_if_large().ok());
  EXPECT_EQ(log.last_line(), "");
}

}  // namespace
}  // namespace millrace::agent::supervisor
