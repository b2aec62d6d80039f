#include "deploy/cli/cluster_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

namespace millrace::deploy::cli {
namespace {

using ::testing::HasSubstr;

class ClusterRecordTest : public ::testing::Test {
 protected:
  ClusterRecordTest() {
    std::string name = ::testing::TempDir() + "cluster_record_XXXXXX";
    dir_ = mkdtemp(name.data());
  }
  ~ClusterRecordTest() override { std::filesystem::remove_all(dir_); }

  std::string dir_;
};

TEST_F(ClusterRecordTest, ComesBackAsItWasWritten) {
  const ClusterRecord record{.entrypoint = "127.0.0.1:8000",
                             .controller = "127.0.0.1:8080",
                             .data_dir = dir_,
                             .model_dir = "/models/nano",
                             .pids = {{"up", {10}}, {"decode", {11, 12}}}};
  ASSERT_TRUE(write_record(record).ok());
  const auto read = read_record(dir_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(to_json(*read), to_json(record));
  EXPECT_EQ(read->model_dir, "/models/nano");
  EXPECT_EQ(to_json(record),
            R"({"entrypoint":"127.0.0.1:8000","controller":"127.0.0.1:8080","data_dir":")" + dir_ +
                R"(","pids":{"decode":[11,12],"up":[10]}})");
}

TEST_F(ClusterRecordTest, AMissingRecordSaysWhatToDo) {
  const auto read = read_record(dir_);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(read.status().ToString(), HasSubstr("millrace up"));
}

TEST_F(ClusterRecordTest, TheLockIsHeldByOneProcessAndEndsWithIt) {
  int ready[2];
  int release[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(release), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = DataDirLock::acquire(dir_);
    char byte = lock.ok() ? 'y' : 'n';
    (void)!write(ready[1], &byte, 1);
    (void)!read(release[0], &byte, 1);
    _exit(0);  // no destructor gives the lock back: the kernel must
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  EXPECT_EQ(DataDirLock::holder(dir_), child);
  EXPECT_EQ(DataDirLock::acquire(dir_).status().code(), absl::StatusCode::kAlreadyExists);

  ASSERT_EQ(write(release[1], &byte, 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(DataDirLock::holder(dir_), std::nullopt);
  EXPECT_TRUE(DataDirLock::acquire(dir_).ok());
  for (int fd : {ready[0], ready[1], release[0], release[1]}) close(fd);
}

TEST_F(ClusterRecordTest, UrlsAreWrittenInManyWays) {
  for (std::string_view flag : {"localhost:9000", "http://localhost:9000", "http://localhost:9000/",
                                "http://localhost:9000/v1", "http://localhost:9000/v1/"}) {
    EXPECT_EQ(*entrypoint_url(flag, dir_), "http://localhost:9000");
  }
  EXPECT_EQ(*entrypoint_url("https://example.org", dir_), "https://example.org");
  EXPECT_THAT(entrypoint_url("", dir_).status().ToString(), HasSubstr("--url"));
}

}  // namespace
}  // namespace millrace::deploy::cli
