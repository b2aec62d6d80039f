#include "storage/map/map_cell.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "common/mapped_file.h"
#include "common/str_cat.h"

namespace millrace::storage {
namespace {

class MapCellTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = str_cat(::testing::TempDir(), "map_cell_",
                      ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    path_ = folder_ + "/map.json";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static StorageMap map_at(std::uint64_t epoch) {
    StorageMap map;
    map.cluster_id = "c1";
    map.epoch = epoch;
    map.data_shards = 1;
    map.parity_shards = 1;
    map.block_bytes = 100;
    map.nodes = {{"n", "host:1"}};
    map.targets = {{"a", "n"}, {"b", "n"}};
    map.groups = {{0, {{"a", MemberState::kUp}, {"b", MemberState::kUp}}}};
    return map;
  }

  std::string folder_;
  std::string path_;
};

TEST_F(MapCellTest, KeepsTheNewestOverARestart) {
  {
    const auto cell = *MapCell::open(path_);
    EXPECT_EQ(cell->current(), nullptr);
    EXPECT_TRUE(cell->offer(map_at(3)).ok());
    EXPECT_TRUE(cell->offer(map_at(2)).ok());
    EXPECT_EQ(cell->current()->epoch, 3U);
  }
  const auto cell = *MapCell::open(path_);
  ASSERT_NE(cell->current(), nullptr);
  EXPECT_EQ(*cell->current(), map_at(3));
}

TEST_F(MapCellTest, AnotherClustersMapIsRefusedWithBothNamed) {
  const auto cell = *MapCell::open(path_);
  EXPECT_TRUE(cell->offer(map_at(1)).ok());
  StorageMap foreign = map_at(9);
  foreign.cluster_id = "c2";
  const absl::Status status = cell->offer(foreign);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(message_of(status).find("c2"), std::string_view::npos);
  EXPECT_NE(message_of(status).find("c1"), std::string_view::npos);
  EXPECT_EQ(cell->current()->epoch, 1U);
}

TEST_F(MapCellTest, ABrokenMapIsRefused) {
  const auto cell = *MapCell::open("");
  StorageMap broken = map_at(1);
  broken.groups[0].members.pop_back();
  EXPECT_EQ(cell->offer(broken).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cell->current(), nullptr);
}

TEST_F(MapCellTest, ADamagedFileIsAnErrorThatNamesIt) {
  ASSERT_TRUE(write_file_durably(path_, "{\"version\":1,").ok());
  const auto cell = MapCell::open(path_);
  ASSERT_FALSE(cell.ok());
  EXPECT_NE(message_of(cell.status()).find(path_), std::string_view::npos) << cell.status();
}

TEST_F(MapCellTest, AnUnwritableFileIsSaidAndTheMapIsTaken) {
  const auto cell = *MapCell::open(folder_ + "/missing/map.json");
  EXPECT_FALSE(cell->offer(map_at(5)).ok());
  ASSERT_NE(cell->current(), nullptr);
  EXPECT_EQ(cell->current()->epoch, 5U);
}

}  // namespace
}  // namespace millrace::storage
