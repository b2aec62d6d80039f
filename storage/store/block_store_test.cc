#include "storage/store/block_store.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <random>
#include <thread>

#include "common/mailbox.h"
#include "storage/store/simulated_nodes.h"

namespace millrace::storage::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kBlockBytes = 5000;

BlockKey key_of(std::uint8_t number) {
  BlockKey key;
  key.bytes.fill(number);
  return key;
}

std::vector<std::byte> block_of(std::uint8_t number) {
  std::mt19937 random(number);
  std::vector<std::byte> block(kBlockBytes);
  for (std::byte& byte : block) byte = static_cast<std::byte>(random());
  return block;
}

/// Simulated nodes on a thread of their own.
class ThreadedNodes : public ShardTransport {
 public:
  explicit ThreadedNodes(std::shared_ptr<const StorageMap> map)
      : nodes_(std::move(map)), thread_([this] { run(); }) {}
  ~ThreadedNodes() override {
    mailbox_.close();
    thread_.join();
  }

  void send(const std::string&, ShardRequest request, ShardReplyCallback done) override {
    run_there([this, request = std::make_shared<ShardRequest>(std::move(request)),
               done = std::move(done)] { nodes_.handle(std::move(*request), done); });
  }
  void set_fault(const std::string& target_id, TargetFault fault) {
    run_there([this, target_id, fault] { nodes_.set_fault(target_id, fault); });
  }
  /// Returns when everything before it has been handled.
  void drain() {
    std::promise<void> done;
    run_there([&done] { done.set_value(); });
    done.get_future().wait();
  }

 private:
  void run_there(std::function<void()> work) { ASSERT_TRUE(mailbox_.try_push(std::move(work))); }
  void run() {
    while (auto work = mailbox_.pop()) (*work)();
  }

  SimulatedNodes nodes_;
  Mailbox<std::function<void()>> mailbox_{1 << 16};
  std::thread thread_;
};

class BlockStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto cell = MapCell::open("");
    ASSERT_TRUE(cell.ok());
    cell_ = *std::move(cell);
    ASSERT_TRUE(cell_->offer(*simulated_map(10, 2, 1, kBlockBytes)).ok());
    start({.seed = 3, .registry = &registry_});
  }
  void start(const BlockStoreOptions& options) {
    store_.reset();
    store_ = std::make_unique<BlockStore>(options, nodes_, *cell_);
  }

  WriteOutcome write(std::uint8_t number) {
    std::promise<WriteOutcome> outcome;
    store_->write({.key = key_of(number), .bytes = block_of(number)}, seconds(20),
                  [&](WriteOutcome result) { outcome.set_value(result); });
    return outcome.get_future().get();
  }
  ReadResult read(std::uint8_t number, milliseconds timeout = seconds(20)) {
    std::promise<ReadResult> outcome;
    store_->read(key_of(number), timeout,
                 [&](ReadResult result) { outcome.set_value(std::move(result)); });
    return outcome.get_future().get();
  }
  void all_silent() {
    for (int i = 0; i < 12; ++i) nodes_.set_fault("t" + std::to_string(i), TargetFault::kSilent);
  }
  void all_well() {
    for (int i = 0; i < 12; ++i) nodes_.set_fault("t" + std::to_string(i), TargetFault::kNone);
    nodes_.drain();
  }

  ThreadedNodes nodes_{simulated_map(10, 2, 1, kBlockBytes)};
  Registry registry_;
  std::unique_ptr<MapCell> cell_;
  std::unique_ptr<BlockStore> store_;
};

TEST_F(BlockStoreTest, ReadsWhatWasWritten) {
  EXPECT_EQ(write(1), WriteOutcome::kStored);
  EXPECT_EQ(write(1), WriteOutcome::kAlreadyThere);
  EXPECT_EQ(read(1).block, block_of(1));
  EXPECT_EQ(read(2).miss, MissReason::kNotFound);
  std::promise<std::vector<bool>> present;
  store_->query({key_of(1), key_of(2)}, seconds(1), seconds(20),
                [&](std::vector<bool> result) { present.set_value(std::move(result)); });
  EXPECT_EQ(present.get_future().get(), (std::vector<bool>{true, false}));
  store_->touch({key_of(1)}, TtlClass::kAgent);
}

TEST_F(BlockStoreTest, TheDeadlineIsKept) {
  ASSERT_EQ(write(1), WriteOutcome::kStored);
  all_silent();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(read(1, milliseconds(100)).miss, MissReason::kDeadline);
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took, milliseconds(100));
  EXPECT_LT(took, seconds(10));
  all_well();
}

// Shards that arrive after the read has finished, and after the store is gone, touch neither the
// landing nor the store: the address sanitizer would say so.
TEST_F(BlockStoreTest, LateAnswersTouchNothing) {
  ASSERT_EQ(write(1), WriteOutcome::kStored);
  all_silent();
  for (const bool destroy : {false, true}) {
    std::promise<ReadResult> outcome;
    auto landing = std::make_unique<std::vector<std::byte>>(kBlockBytes, std::byte{0x5a});
    store_->read(key_of(1), *landing, milliseconds(30),
                 [&](ReadResult result) { outcome.set_value(std::move(result)); });
    if (destroy) store_.reset();
    EXPECT_FALSE(outcome.get_future().get().is_hit());
    EXPECT_EQ(*landing, std::vector<std::byte>(kBlockBytes, std::byte{0x5a}));
    landing.reset();
    if (destroy) break;
    all_well();
    all_silent();
  }
  all_well();
}

TEST_F(BlockStoreTest, DestructionFinishesEverything) {
  all_silent();
  int finished = 0;
  for (std::uint8_t i = 0; i < 50; ++i) {
    store_->read(key_of(i), seconds(100), [&](const ReadResult& result) {
      EXPECT_EQ(result.miss, MissReason::kShutdown);
      ++finished;
    });
    store_->write({.key = key_of(i), .bytes = block_of(i)}, seconds(100),
                  [&](WriteOutcome outcome) {
                    EXPECT_EQ(outcome, WriteOutcome::kShutdown);
                    ++finished;
                  });
  }
  store_.reset();
  EXPECT_EQ(finished, 100);
  all_well();
}

TEST_F(BlockStoreTest, AFullInboxIsBusyAtOnce) {
  start({.seed = 4, .max_waiting_operations = 0});
  EXPECT_EQ(read(1).miss, MissReason::kBusy);
  EXPECT_EQ(write(1), WriteOutcome::kBusy);
  std::promise<std::vector<bool>> present;
  store_->query({key_of(1)}, {}, seconds(1),
                [&](std::vector<bool> result) { present.set_value(std::move(result)); });
  EXPECT_EQ(present.get_future().get(), std::vector<bool>{false});
}

TEST_F(BlockStoreTest, CountsAreExposed) {
  ASSERT_EQ(write(1), WriteOutcome::kStored);
  ASSERT_TRUE(read(1).is_hit());
  ASSERT_FALSE(read(2).is_hit());
  store_.reset();  // publishes what is left
  const std::string text = registry_.exposition();
  for (const char* line : {"millrace_storage_client_reads_total{result=\"hit\"} 1",
                           "millrace_storage_client_reads_total{result=\"not_found\"} 1",
                           "millrace_storage_client_reads_total{result=\"deadline\"} 0",
                           "millrace_storage_client_writes_total{outcome=\"stored\"} 1",
                           "millrace_storage_client_read_bytes_total 5000",
                           "millrace_storage_client_shard_defects_total{defect=\"checksum\"} 0"})
    EXPECT_NE(text.find(line), std::string::npos) << line;
}

}  // namespace
}  // namespace millrace::storage::store
