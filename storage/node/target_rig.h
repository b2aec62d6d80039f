#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/metrics/metrics.h"
#include "storage/disk/simulated_disk.h"
#include "storage/index/shard_index.h"
#include "storage/index/simulated_file_system.h"
#include "storage/node/target.h"
#include "storage/wire/shard_format.h"

namespace millrace::storage::node {

inline constexpr std::uint32_t kTestBlockBytes = 1000;
inline constexpr int kTestDataShards = 3;
inline constexpr int kTestParityShards = 2;

inline BlockKey test_key(std::uint64_t number) {
  BlockKey key;
  std::mt19937_64 random(number + 1);
  for (std::uint8_t& byte : key.bytes) byte = static_cast<std::uint8_t>(random());
  return key;
}

struct TestShard {
  std::uint64_t key = 0;
  Generation generation = 1;
  std::uint8_t shard_index = 1;
  std::uint32_t depth = 0;
  TtlClass ttl = TtlClass::kAgent;
};

/// A sealed shard whose payload follows from what names it.
inline std::vector<std::byte> sealed_shard(const TestShard& shard) {
  ShardHeader header;
  header.key = test_key(shard.key);
  header.generation = shard.generation;
  header.shard_index = shard.shard_index;
  header.data_shards = kTestDataShards;
  header.parity_shards = kTestParityShards;
  header.ttl = shard.ttl;
  header.depth = shard.depth;
  header.block_bytes = kTestBlockBytes;
  header.payload_bytes =
      static_cast<std::uint32_t>(shard_payload_bytes(kTestBlockBytes, kTestDataShards));
  std::vector<std::byte> bytes(kShardHeaderBytes + header.payload_bytes);
  std::mt19937_64 random(shard.key * 1000 + shard.generation * 32 + shard.shard_index);
  for (std::size_t i = kShardHeaderBytes; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(random());
  seal_shard(header, bytes);
  return bytes;
}

/// One target on a simulated disk, on one thread and a clock that the test moves.
class TargetRig {
 public:
  struct Options {
    std::uint64_t seed = 1;
    std::uint64_t slots = 16;
    bool on_rocks = false;  ///< its index in RocksDB on the same disk; else in memory
    TargetSettings settings = {};
  };

  explicit TargetRig(const Options& options)
      : options_(options), disk_(options.seed), metrics_(registry_, {"t"}) {
    identity_ = {
        .cluster_id = "c",
        .target_id = "t",
        .slot_bytes = static_cast<std::uint32_t>(slot_bytes_for(kTestBlockBytes, kTestDataShards)),
        .slot_count = options.slots};
    if (!options.on_rocks) index_ = index::make_memory_index(identity_);
    CHECK(open().ok());
  }

  /// Opens file, index and target again, as a new process does.
  absl::Status open() {
    target_.reset();
    io_ = std::make_unique<disk::SimulatedSlotIo>(
        disk_, "/disk/slots", identity_.slot_count * identity_.slot_bytes,
        options_.settings.queue_depth, options_.seed + ++lives_);
    if (options_.on_rocks) {
      index_.reset();
      auto opened =
          index::open_rocks_index({.path = "/disk/index",
                                   .identity = identity_,
                                   .write_buffer_bytes = 64 << 10,
                                   .file_system = index::make_simulated_file_system(disk_)});
      if (!opened.ok()) return opened.status();
      index_ = std::move(*opened);
    }
    auto opened = Target::open(options_.settings, *io_, *index_, metrics_, now_);
    if (!opened.ok()) return opened.status();
    target_ = std::move(*opened);
    target_->set_place(index::ShardPlace{.group_id = 0,
                                         .shard_index = 1,
                                         .data_shards = kTestDataShards,
                                         .parity_shards = kTestParityShards});
    return absl::OkStatus();
  }

  void advance(std::chrono::nanoseconds time) { now_ += time; }
  TimePoint now() const { return now_; }

  /// One turn: some I/O ends, then commits and answers.
  void turn(std::size_t completions = 100) {
    target_->on_completions(io_->run(completions), now_);
    target_->end_turn(now_);
  }

  /// Carries out one request to its answer.
  ShardReply ask(ShardOperation operation) {
    std::optional<ShardReply> answer;
    target_->handle(
        std::move(operation), [&](ShardReply reply) { answer = std::move(reply); }, now_);
    for (int i = 0; i < 20 && !answer; ++i) turn();
    CHECK(answer.has_value(), "every request is answered");
    return *std::move(answer);
  }

  /// A block's shard, written and published.
  void store(const TestShard& shard) {
    CHECK(ask(WriteShard{sealed_shard(shard)}).result == ShardResult::kOk);
    CHECK(ask(PublishShard{test_key(shard.key), shard.generation}).result == ShardResult::kOk);
  }

  bool is_published(std::uint64_t key) {
    return ask(QueryKeys{.keys = {test_key(key)}}).present.at(0);
  }

  Target& target() { return *target_; }
  disk::SimulatedDisk& disk() { return disk_; }
  disk::SimulatedSlotIo& io() { return *io_; }
  index::ShardIndex& index() { return *index_; }
  const NodeMetrics& metrics() const { return metrics_; }

 private:
  const Options options_;
  Registry registry_;
  disk::SimulatedDisk disk_;
  NodeMetrics metrics_;
  index::TargetIdentity identity_;
  TimePoint now_ = TimePoint() + std::chrono::hours(1000);
  std::uint64_t lives_ = 0;
  std::unique_ptr<disk::SimulatedSlotIo> io_;
  std::unique_ptr<index::ShardIndex> index_;
  std::unique_ptr<Target> target_;
};

}  // namespace millrace::storage::node
