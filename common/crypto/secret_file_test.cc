#include "common/crypto/secret_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/str_cat.h"

namespace millrace {
namespace {

class SecretFile : public ::testing::Test {
 protected:
  void SetUp() override { path_ = str_cat(::testing::TempDir(), "secret_file.", ::getpid()); }
  void TearDown() override { std::filesystem::remove(path_); }

  void write(const std::string& bytes, mode_t mode) {
    std::ofstream(path_, std::ios::trunc) << bytes;
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
  }

  std::string path_;
};

TEST_F(SecretFile, IsReadAsItIs) {
  write("0123456789abcdef0123456789abcde\n", 0600);
  const absl::StatusOr<Secret> secret = read_secret_file(path_);
  ASSERT_TRUE(secret.ok()) << secret.status();
  EXPECT_EQ(secret->front(), '0');
  EXPECT_EQ(secret->back(), '\n');
}

TEST_F(SecretFile, ThatIsMissingIsNotFoundByName) {
  const absl::Status status = read_secret_file(path_).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_NE(message_of(status).find(path_), std::string_view::npos);
}

TEST_F(SecretFile, ThatOthersMayReadIsRefused) {
  write(std::string(32, 'x'), 0640);
  const absl::Status status = read_secret_file(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(message_of(status).find("0600"), std::string_view::npos);
}

TEST_F(SecretFile, OfAnotherLengthIsRefused) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{31}, std::size_t{33}}) {
    write(std::string(size, 'x'), 0600);
    EXPECT_EQ(read_secret_file(path_).status().code(), absl::StatusCode::kDataLoss) << size;
  }
}

}  // namespace
}  // namespace millrace
