#include "api/entrypoint/kv_lookup.h"

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <thread>

#include "api/entrypoint/fake_store.h"
#include "storage/map/map_cell.h"
#include "storage/store/grpc_transport.h"

namespace millrace::api::entrypoint {
namespace {

using namespace std::chrono_literals;
using storage::BlockKey;

std::vector<BlockKey> keys_of(int chain, int count) {
  std::vector<BlockKey> keys(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    std::memcpy(keys[static_cast<std::size_t>(i)].bytes.data(), &i, sizeof(i));
    keys[static_cast<std::size_t>(i)].bytes[31] = static_cast<std::uint8_t>(chain);
  }
  return keys;
}

std::vector<BlockKey> first(const std::vector<BlockKey>& keys, int count) {
  return {keys.begin(), keys.begin() + count};
}

class KvLookupTest : public ::testing::Test {
 protected:
  KvLookupTest() {
    EXPECT_TRUE(cell_->offer(nodes_.map()).ok());
    blocks_ = std::make_unique<storage::store::BlockStore>(
        storage::store::BlockStoreOptions{.seed = 1}, *transport_, *cell_);
    KvLookupOptions options;
    options.timeout = 2000ms;
    open(options);
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~KvLookupTest() override {
    loop_.stop();
    thread_.join();
    blocks_ = nullptr;
  }

  void open(const KvLookupOptions& options) {
    lookup_ = std::make_unique<KvLookup>(loop_, *blocks_, metrics_, options);
  }

  static std::shared_ptr<const RequestBlocks> request(
      const std::vector<std::vector<BlockKey>>& prompts) {
    auto blocks = std::make_shared<RequestBlocks>();
    blocks->salt.fill(9);
    for (const std::vector<BlockKey>& keys : prompts) {
      // 60 tokens behind the last full block
      blocks->prompts.push_back({static_cast<std::uint32_t>(keys.size() * 128 + 60), keys});
    }
    return blocks;
  }

  std::vector<KvFinding> find(const std::shared_ptr<const RequestBlocks>& blocks) {
    std::promise<std::vector<KvFinding>> found;
    loop_.post([&] {
      lookup_->start(blocks,
                     [&](std::vector<KvFinding> result) { found.set_value(std::move(result)); });
    });
    return found.get_future().get();
  }

  /// As often as a busy machine makes the store give up on a slow node, which counts as missing.
  std::vector<KvFinding> find_hit(const std::shared_ptr<const RequestBlocks>& blocks,
                                  std::size_t hit_blocks) {
    std::vector<KvFinding> findings = find(blocks);
    for (int tries = 0; tries < 100 && findings[0].hit_blocks != hit_blocks; ++tries) {
      std::this_thread::sleep_for(20ms);
      findings = find(blocks);
    }
    return findings;
  }

  int asked() const {
    int count = 0;
    for (const auto& [key, times] : nodes_.asked()) count += times;
    return count;
  }

  test::FakeStore nodes_;
  Registry registry_;
  KvMetrics metrics_{registry_};
  std::unique_ptr<storage::MapCell> cell_ = *storage::MapCell::open("");
  std::unique_ptr<storage::ShardTransport> transport_ = storage::store::make_grpc_transport();
  common::http::EventLoop loop_;
  std::unique_ptr<storage::store::BlockStore> blocks_;
  std::unique_ptr<KvLookup> lookup_;
  std::thread thread_;
};

TEST_F(KvLookupTest, FindsHowManyLeadingBlocksOfEachPromptAreStored) {
  const auto one = keys_of(1, 100);
  const auto two = keys_of(2, 100);
  nodes_.plant(first(one, 37));
  const auto findings = find_hit(request({one, two}), 37);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].blocks, 100U);
  EXPECT_EQ(findings[0].hit_blocks, 37U);
  EXPECT_EQ(findings[0].scope.hit_tokens, 37U * 128);
  EXPECT_EQ(findings[0].scope.salt[0], 9);
  EXPECT_EQ(findings[1].hit_blocks, 0U);
  EXPECT_EQ(findings[1].scope.hit_tokens, 0U);
}

TEST_F(KvLookupTest, AWholePromptIsUsedUpToWhereThePrefillNeedsTokensToRun) {
  const auto keys = keys_of(1, 10);
  nodes_.plant(keys);
  // 10 * 128 + 60 tokens: 134 of them are run, so that 9 blocks can be used.
  EXPECT_EQ(find_hit(request({keys}), 9)[0].scope.hit_tokens, 9U * 128);
  EXPECT_FALSE(nodes_.asked().contains(keys[9])) << "nobody could use it";
}

TEST_F(KvLookupTest, AsksForNothingThatItSawAMomentAgo) {
  const auto keys = keys_of(1, 60);
  nodes_.plant(keys);
  find_hit(request({keys}), 59);
  const int before = asked();
  EXPECT_GT(before, 0);
  EXPECT_EQ(find(request({keys}))[0].hit_blocks, 59U);
  EXPECT_EQ(asked(), before);
}

TEST_F(KvLookupTest, AsksAgainForWhatWasMissing) {
  const auto keys = keys_of(1, 60);
  EXPECT_EQ(find(request({keys}))[0].hit_blocks, 0U);
  nodes_.plant(keys);
  EXPECT_EQ(find_hit(request({keys}), 59)[0].hit_blocks, 59U);
}

TEST_F(KvLookupTest, AShortPromptAsksForNothing) {
  const auto keys = keys_of(1, 1);
  nodes_.plant(keys);
  EXPECT_EQ(find(request({keys}))[0].scope.hit_tokens, 0U);
  EXPECT_EQ(asked(), 0);
}

TEST_F(KvLookupTest, WhatIsNotKnownInTimeIsAMiss) {
  KvLookupOptions options;
  options.timeout = 30ms;
  open(options);
  const auto keys = keys_of(1, 60);
  nodes_.plant(keys);
  nodes_.set_silent(true);
  const auto begin = std::chrono::steady_clock::now();
  const auto findings = find(request({keys}));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
  EXPECT_EQ(findings[0].scope.hit_tokens, 0U);
  EXPECT_EQ(findings[0].scope.salt[0], 9) << "new blocks are stored all the same";
  EXPECT_NE(registry_.exposition().find("millrace_kv_check_total{result=\"timeout\"} 1"),
            std::string::npos);
  nodes_.set_silent(false);
}

}  // namespace
}  // namespace millrace::api::entrypoint
