#include "deploy/cli/cluster_secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "common/str_cat.h"

namespace millrace::deploy::cli {
namespace {

class ClusterSecretTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = str_cat(::testing::TempDir(), "cluster_secret_",
                      ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

TEST_F(ClusterSecretTest, IsMadeOnceAndStaysAndIsItsOwnersAlone) {
  EXPECT_TRUE(absl::IsNotFound(load_secret(folder_).status()));
  const ClusterSecret first = *load_or_create_secret(folder_);
  EXPECT_EQ(*load_or_create_secret(folder_), first);
  EXPECT_EQ(*load_secret(folder_), first);
  EXPECT_NE(first, ClusterSecret{});
  struct stat info {};
  ASSERT_EQ(stat(cluster_secret_path(folder_).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(ClusterSecretTest, TwoFoldersHaveTwo) {
  const std::string other = folder_ + "/other";
  std::filesystem::create_directories(other);
  EXPECT_NE(*load_or_create_secret(folder_), *load_or_create_secret(other));
}

TEST_F(ClusterSecretTest, AFileOfAnotherLengthIsNotReplaced) {
  std::ofstream(cluster_secret_path(folder_)) << "short";
  ASSERT_EQ(chmod(cluster_secret_path(folder_).c_str(), 0600), 0);
  const auto secret = load_or_create_secret(folder_);
  EXPECT_EQ(secret.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(message_of(secret.status()).find("cluster.secret"), std::string_view::npos);
}

}  // namespace
}  // namespace millrace::deploy::cli
