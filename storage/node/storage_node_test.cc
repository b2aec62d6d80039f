#include "storage/node/storage_node.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "common/str_cat.h"
#include "storage/node/target_rig.h"

namespace millrace::storage::node {
namespace {

constexpr std::size_t kTargets = kTestDataShards + kTestParityShards;
constexpr int kSlots = 512;

/// A network in which nobody else is.
class NoTransport final : public ShardTransport {
 public:
  void send(const std::string&, ShardRequest, ShardReplyCallback done) override {
    std::thread([done = std::move(done)] { done(ShardReply{}); }).detach();
  }
};

class StorageNodeTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = str_cat(testing::TempDir(), "storage_node_", ::getpid());
    std::filesystem::remove_all(folder_);
    for (std::size_t i = 0; i < kTargets; ++i)
      std::filesystem::create_directories(str_cat(folder_, "/", i));
    maps_ = MapCell::open("").value();
    map_.cluster_id = std::string("c1");
    map_.epoch = 5;
    map_.data_shards = kTestDataShards;
    map_.parity_shards = kTestParityShards;
    map_.block_bytes = kTestBlockBytes;
    map_.nodes = {{.id = "n1", .address = "127.0.0.1:1"}};
    Group group;
    for (std::size_t i = 0; i < kTargets; ++i) {
      map_.targets.push_back({.id = str_cat("t", i), .node_id = "n1"});
      group.members.push_back({.target_id = str_cat("t", i)});
    }
    map_.groups = {group};
    ASSERT_TRUE(maps_->offer(map_).ok());
  }

  void TearDown() override {
    node_.reset();
    std::filesystem::remove_all(folder_);
  }

  absl::Status open() {
    node_.reset();
    registry_ = std::make_unique<Registry>();
    StorageNodeConfig config;
    config.node_id = "n1";
    config.target_bytes = std::uint64_t{kSlots} * 4096;
    config.settings.full_retry = std::chrono::milliseconds(200);
    for (std::size_t i = 0; i < kTargets; ++i)
      config.targets.push_back({.target_id = str_cat("t", i),
                                .slot_path = str_cat(folder_, "/", i, "/slots"),
                                .index_path = str_cat(folder_, "/", i, "/index")});
    node_ = std::make_unique<StorageNode>(
        config, *maps_, transport_, *registry_,
        Logger::to_sink("storaged", LogLevel::kError, [](std::string_view) {}),
        [this] { ++newer_maps_; });
    return node_->open_targets();
  }

  ShardReply ask(const std::string& target_id, ShardOperation operation, std::uint64_t epoch = 5,
                 const std::string& cluster_id = "c1") {
    std::promise<ShardReply> answer;
    std::future<ShardReply> future = answer.get_future();
    node_->handle({.cluster_id = cluster_id,
                   .map_epoch = epoch,
                   .target_id = target_id,
                   .operation = std::move(operation),
                   .deadline = std::chrono::seconds(30)},
                  [&](ShardReply reply) { answer.set_value(std::move(reply)); });
    return future.get();
  }

  std::string folder_;
  StorageMap map_;
  std::unique_ptr<MapCell> maps_;
  NoTransport transport_;
  std::unique_ptr<Registry> registry_;
  std::atomic<int> newer_maps_ = 0;
  std::unique_ptr<StorageNode> node_;
};

TEST_F(StorageNodeTest, StoresShardsOnItsDisksAlsoOverARestart) {
  ASSERT_TRUE(open().ok());
  for (std::uint8_t i = 0; i < kTargets; ++i) {
    const std::string target = str_cat("t", static_cast<int>(i));
    ASSERT_EQ(ask(target, WriteShard{sealed_shard({.key = 1, .shard_index = i})}).result,
              ShardResult::kOk);
    ASSERT_EQ(ask(target, PublishShard{test_key(1), 1}).result, ShardResult::kOk);
  }
  ASSERT_TRUE(open().ok());
  for (std::uint8_t i = 0; i < kTargets; ++i) {
    const ShardReply read = ask(str_cat("t", static_cast<int>(i)), ReadShard{test_key(1)});
    EXPECT_EQ(read.result, ShardResult::kOk);
    EXPECT_EQ(read.shard, sealed_shard({.key = 1, .shard_index = i}));
    EXPECT_EQ(read.map_epoch, 5U);
  }
  ASSERT_EQ(node_->status().size(), kTargets);
  EXPECT_EQ(node_->status()[0].published_shards, 1U);
}

TEST_F(StorageNodeTest, RefusesOtherClustersOldMapsAndForeignTargetsByName) {
  ASSERT_TRUE(open().ok());
  const ShardReply cluster = ask("t0", ReadShard{}, 5, "c2");
  EXPECT_EQ(cluster.result, ShardResult::kWrongCluster);
  EXPECT_NE(cluster.message.find("c2"), std::string::npos);
  EXPECT_NE(cluster.message.find("c1"), std::string::npos);
  const ShardReply stale = ask("t0", ReadShard{}, 4);
  EXPECT_EQ(stale.result, ShardResult::kStaleMap);
  EXPECT_EQ(stale.map_epoch, 5U);
  const ShardReply target = ask("t9", ReadShard{});
  EXPECT_EQ(target.result, ShardResult::kWrongTarget);
  EXPECT_NE(target.message.find("t9"), std::string::npos);
  EXPECT_EQ(newer_maps_, 0);
  EXPECT_EQ(ask("t0", ReadShard{}, 6).result, ShardResult::kNotFound);
  EXPECT_EQ(newer_maps_, 1);
}

TEST_F(StorageNodeTest, RefusesBlocksOfAnotherGroupByName) {
  map_.nodes.push_back({.id = "n2", .address = "127.0.0.1:2"});
  Group other{.id = 8, .members = {}};
  for (std::size_t i = 0; i < kTargets; ++i) {
    map_.targets.push_back({.id = str_cat("u", i), .node_id = "n2"});
    other.members.push_back({.target_id = str_cat("u", i)});
  }
  map_.groups.push_back(other);
  map_.epoch = 6;
  ASSERT_TRUE(maps_->offer(map_).ok());
  ASSERT_TRUE(open().ok());
  std::uint64_t own = 0;
  while (group_of(map_, test_key(own)).id != 0) ++own;
  std::uint64_t foreign = 0;
  while (group_of(map_, test_key(foreign)).id != 8) ++foreign;
  const std::vector<ShardOperation> refused = {
      WriteShard{sealed_shard({.key = foreign})},
      PublishShard{test_key(foreign), 1},
      ReadShard{test_key(foreign)},
      QueryKeys{.keys = {test_key(own), test_key(foreign)}},
      TouchKeys{{test_key(foreign)}, TtlClass::kAgent},
      RepairShard{test_key(foreign)},
  };
  for (const ShardOperation& operation : refused) {
    const ShardReply reply = ask("t1", operation, 6);
    EXPECT_EQ(reply.result, ShardResult::kInvalid) << operation_name(operation);
    EXPECT_EQ(reply.message, "a block of group 8 by map 6; target t1 is of group 0");
  }
  EXPECT_EQ(ask("t1", DropShard{test_key(foreign), 0}, 6).result, ShardResult::kOk);
  EXPECT_EQ(ask("t1", WriteShard{sealed_shard({.key = own})}, 6).result, ShardResult::kOk);
  EXPECT_EQ(ask("t1", ListShards{.after = {}, .from_start = true}, 6).listed.size(), 1U);
}

TEST_F(StorageNodeTest, RefusesFoldersOfAnotherClusterAndHarmsNothing) {
  ASSERT_TRUE(open().ok());
  node_.reset();
  maps_ = MapCell::open("").value();
  map_.cluster_id = std::string("c2");
  ASSERT_TRUE(maps_->offer(map_).ok());
  const absl::Status opened = open();
  EXPECT_EQ(opened.code(), absl::StatusCode::kFailedPrecondition) << opened;
  EXPECT_NE(opened.message().find("c1"), absl::string_view::npos) << opened;
  node_.reset();
  maps_ = MapCell::open("").value();
  map_.cluster_id = std::string("c1");
  ASSERT_TRUE(maps_->offer(map_).ok());
  EXPECT_TRUE(open().ok());
}

TEST_F(StorageNodeTest, ATargetWhoseFolderIsGoneFailsAloneWithItsReason) {
  std::filesystem::remove_all(folder_ + "/2");
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(ask("t1", ReadShard{test_key(1)}).result, ShardResult::kNotFound);
  const ShardReply failed = ask("t2", ReadShard{test_key(1)});
  EXPECT_EQ(failed.result, ShardResult::kIoError);
  EXPECT_NE(failed.message.find(folder_ + "/2"), std::string::npos) << failed.message;
  EXPECT_EQ(node_->status()[2].state, TargetState::kFailed);
  EXPECT_EQ(node_->status()[2].target_id, "t2");
}

/// No file of this process may grow beyond so many bytes, nor be written there: as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_ = {};
};

TEST_F(StorageNodeTest, ATargetThatWasFullWritesAgainWhenThereIsSpace) {
  ASSERT_TRUE(open().ok());
  // On all members: a shard of which the others have none would be let go of.
  for (std::uint8_t i = 0; i < kTargets; ++i) {
    const std::string target = str_cat("t", static_cast<int>(i));
    ASSERT_EQ(ask(target, WriteShard{sealed_shard({.key = 1, .shard_index = i})}).result,
              ShardResult::kOk);
    ASSERT_EQ(ask(target, PublishShard{test_key(1), 1}).result, ShardResult::kOk);
  }
  std::uint64_t key = 2;
  {
    const FileSizeLimit limit(1 << 20);
    ShardReply refused;
    do {
      refused = ask("t1", WriteShard{sealed_shard({.key = key++})});
    } while (refused.result == ShardResult::kOk && key < kSlots);
    EXPECT_EQ(refused.result, ShardResult::kFull);
    EXPECT_NE(refused.message.find("File too large"), std::string::npos) << refused.message;
    EXPECT_EQ(ask("t1", ReadShard{test_key(1)}).result, ShardResult::kOk) << "served all the time";
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (ask("t1", WriteShard{sealed_shard({.key = key})}).result != ShardResult::kOk &&
         std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(ask("t1", PublishShard{test_key(key), 1}).result, ShardResult::kOk);
  EXPECT_EQ(ask("t1", ReadShard{test_key(1)}).result, ShardResult::kOk);
}

TEST_F(StorageNodeTest, WhatIsOverdueIsNotBegun) {
  ASSERT_TRUE(open().ok());
  std::promise<ShardReply> answer;
  node_->handle({.cluster_id = "c1",
                 .map_epoch = 5,
                 .target_id = "t1",
                 .operation = ReadShard{test_key(1)},
                 .deadline = std::chrono::milliseconds(0)},
                [&](ShardReply reply) { answer.set_value(std::move(reply)); });
  EXPECT_EQ(answer.get_future().get().result, ShardResult::kOverdue);
}

TEST_F(StorageNodeTest, AnswersEverythingThatIsQueuedWhenItStops) {
  ASSERT_TRUE(open().ok());
  std::atomic<int> answered = 0;
  constexpr int kRequests = 2000;
  for (int i = 0; i < kRequests; ++i)
    node_->handle({.cluster_id = "c1",
                   .map_epoch = 5,
                   .target_id = "t1",
                   .operation = WriteShard{sealed_shard({.key = static_cast<std::uint64_t>(i)})},
                   .deadline = std::chrono::seconds(30)},
                  [&](const ShardReply&) { ++answered; });
  node_.reset();
  EXPECT_EQ(answered, kRequests);
}

TEST_F(StorageNodeTest, LetsGoOfADamagedShardThatNobodyCanMakeAgain) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(ask("t1", WriteShard{sealed_shard({.key = 1})}).result, ShardResult::kOk);
  ASSERT_EQ(ask("t1", PublishShard{test_key(1), 1}).result, ShardResult::kOk);
  node_.reset();
  {
    std::fstream slots(folder_ + "/1/slots", std::ios::in | std::ios::out | std::ios::binary);
    for (int slot = 0; slot < kSlots; ++slot) {
      slots.seekp(slot * 4096 + 200);
      slots.put('!');
    }
  }
  ASSERT_TRUE(open().ok());
  const ShardReply bad = ask("t1", ReadShard{test_key(1)});
  EXPECT_EQ(bad.result, ShardResult::kBadShard);
  EXPECT_EQ(bad.defect, ShardDefect::kChecksum);
  // It is the only shard of its block: it cannot be made again, and is let go of.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (ask("t1", ReadShard{test_key(1)}).result != ShardResult::kNotFound &&
         std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(ask("t1", ReadShard{test_key(1)}).result, ShardResult::kNotFound);
}

}  // namespace
}  // namespace millrace::storage::node
