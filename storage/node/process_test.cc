// millrace-storaged as a process: what it answers on its port, over kill -9 and restarts.

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <future>
#include <thread>

#include "common/json.h"
#include "common/mapped_file.h"
#include "common/process/child_process.h"
#include "common/str_cat.h"
#include "storage/map/storage_map.h"
#include "storage/node/target_rig.h"
#include "storage/store/grpc_transport.h"

namespace millrace::storage::node {
namespace {

constexpr std::size_t kTargets = kTestDataShards + kTestParityShards;
constexpr auto kPatience = std::chrono::seconds(60);

class StoragedTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = str_cat(testing::TempDir(), "storaged_", ::getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    StorageMap map;
    map.cluster_id = std::string("c1");
    map.epoch = 1;
    map.data_shards = kTestDataShards;
    map.parity_shards = kTestParityShards;
    map.block_bytes = kTestBlockBytes;
    map.nodes = {{.id = "n", .address = "127.0.0.1:1"}};
    Group group;
    for (std::size_t i = 0; i < kTargets; ++i) {
      map.targets.push_back({.id = target(i), .node_id = "n"});
      group.members.push_back({.target_id = target(i)});
    }
    map.groups = {group};
    ASSERT_TRUE(save_map(folder_ + "/map.json", map).ok());
  }

  void TearDown() override {
    process_.reset();
    std::filesystem::remove_all(folder_);
  }

  static std::string target(std::size_t index) { return str_cat("n-target-0", index); }

  ChildSpec spec(std::vector<std::string> more = {}) const {
    ChildSpec made;
    made.program = MILLRACE_STORAGED_PROGRAM;
    made.arguments = {"--node-id",       "n",         "--data-dir",
                      folder_ + "/data", "--targets", str_cat(kTargets),
                      "--target-bytes",  "1048576",   "--ready-file",
                      folder_ + "/ready"};
    made.arguments.insert(made.arguments.end(), more.begin(), more.end());
    made.output_path = folder_ + "/log";
    return made;
  }

  void start() {
    std::filesystem::remove(folder_ + "/ready");
    auto started = ChildProcess::start(spec({"--map", folder_ + "/map.json"}));
    ASSERT_TRUE(started.ok()) << started.status();
    process_ = std::make_unique<ChildProcess>(std::move(*started));
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!std::filesystem::exists(folder_ + "/ready")) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << read_file(folder_ + "/log").value();
      ASSERT_FALSE(process_->poll()) << read_file(folder_ + "/log").value();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const Json ready = parse_json(read_file(folder_ + "/ready").value()).value();
    address_ = ready.at("address").get<std::string>();
  }

  ShardReply ask(std::size_t index, ShardOperation operation) {
    std::promise<ShardReply> answer;
    std::future<ShardReply> future = answer.get_future();
    transport_->send(address_,
                     {.cluster_id = "c1",
                      .map_epoch = 1,
                      .target_id = target(index),
                      .operation = std::move(operation),
                      .deadline = std::chrono::seconds(30)},
                     [&](ShardReply reply) { answer.set_value(std::move(reply)); });
    return future.get();
  }

  std::string folder_;
  std::string address_;
  std::unique_ptr<ShardTransport> transport_ = store::make_grpc_transport();
  std::unique_ptr<ChildProcess> process_;
};

TEST_F(StoragedTest, WhatItAcknowledgedIsThereAfterAKillAndAfterAStop) {
  start();
  if (HasFatalFailure()) return;
  for (std::uint64_t key = 1; key <= 10; ++key) {
    for (std::uint8_t i = 0; i < kTargets; ++i) {
      ASSERT_EQ(ask(i, WriteShard{sealed_shard({.key = key, .shard_index = i})}).result,
                ShardResult::kOk);
      ASSERT_EQ(ask(i, PublishShard{test_key(key), 1}).result, ShardResult::kOk);
    }
  }
  for (const int signal : {SIGKILL, SIGTERM}) {
    process_->send(signal);
    const auto ended = process_->wait_for(kPatience);
    ASSERT_TRUE(ended);
    if (signal == SIGTERM) {
      EXPECT_TRUE(ended->is_success()) << describe(*ended);
    }
    start();
    if (HasFatalFailure()) return;
    for (std::uint64_t key = 1; key <= 10; ++key) {
      for (std::uint8_t i = 0; i < kTargets; ++i) {
        const ShardReply read = ask(i, ReadShard{test_key(key)});
        ASSERT_EQ(read.result, ShardResult::kOk) << shard_result_name(read.result);
        EXPECT_EQ(read.shard, sealed_shard({.key = key, .shard_index = i}));
      }
    }
  }
}

TEST_F(StoragedTest, TakesANewerMapFromItsFileAndRefusesTheOldOne) {
  start();
  if (HasFatalFailure()) return;
  EXPECT_EQ(ask(0, ReadShard{test_key(1)}).result, ShardResult::kNotFound);
  StorageMap map = load_map(folder_ + "/map.json").value();
  map.epoch = 7;
  ASSERT_TRUE(save_map(folder_ + "/map.json", map).ok());
  ShardReply reply;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline && reply.result != ShardResult::kStaleMap) {
    reply = ask(0, ReadShard{test_key(1)});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_EQ(reply.result, ShardResult::kStaleMap);
  EXPECT_EQ(reply.map_epoch, 7U);
}

TEST_F(StoragedTest, SaysWhatIsMissingInsteadOfStarting) {
  auto started = ChildProcess::start(spec());
  ASSERT_TRUE(started.ok()) << started.status();
  const auto ended = started->wait_for(kPatience);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->code, 1);
  const std::string log = read_file(folder_ + "/log").value();
  EXPECT_NE(log.find("--controller or --map is needed"), std::string::npos) << log;
}

TEST_F(StoragedTest, ASecondProcessOnTheSameFolderIsRefusedByName) {
  start();
  if (HasFatalFailure()) return;
  ChildSpec second = spec({"--map", folder_ + "/map.json"});
  second.output_path = folder_ + "/second.log";
  auto started = ChildProcess::start(second);
  ASSERT_TRUE(started.ok()) << started.status();
  const auto ended = started->wait_for(kPatience);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->code, 1);
  const std::string log = read_file(folder_ + "/second.log").value();
  EXPECT_NE(log.find("another process has it"), std::string::npos) << log;
  EXPECT_EQ(ask(0, ReadShard{test_key(1)}).result, ShardResult::kNotFound) << "the first goes on";
}

}  // namespace
}  // namespace millrace::storage::node
