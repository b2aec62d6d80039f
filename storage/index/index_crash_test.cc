#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "common/str_cat.h"
#include "storage/index/shard_index.h"
#include "storage/index/simulated_file_system.h"

namespace millrace::storage::index {
namespace {

BlockKey key_of(std::uint64_t number) {
  BlockKey key;
  std::mt19937_64 random(number);
  for (std::uint8_t& byte : key.bytes) byte = static_cast<std::uint8_t>(random());
  return key;
}

/// Whatever the power cut hits, RocksDB's own files included: what a synced commit put or erased is
/// so, whole commits are there or not, and both orders agree.
TEST(RocksIndexCrash, KeepsEverySyncedCommitWhereverThePowerGoes) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    std::mt19937_64 random(seed);
    disk::SimulatedDisk disk(seed);
    const RocksIndexOptions options = {
        .path = "/disk/index",
        .identity = {.cluster_id = "c", .target_id = "t", .slot_bytes = 4096, .slot_count = 100},
        .write_buffer_bytes = 64 << 10,
        .file_system = make_simulated_file_system(disk)};
    std::map<BlockKey, std::optional<ShardRecord>> written;
    std::set<BlockKey> in_doubt;  // changed since the last sync
    std::uint32_t minute = 0;
    for (int life = 0; life < 3; ++life) {
      disk.cut_power_after(1 + random() % 400);
      if (auto opened = open_rocks_index(options); opened.ok()) {
        while (!disk.is_cut()) {
          std::vector<IndexChange> changes;
          const std::uint64_t count = 1 + random() % 5;
          for (std::uint64_t i = 0; i < count; ++i) {
            const BlockKey key = key_of(random() % 50);
            in_doubt.insert(key);
            if (random() % 3 == 0) {
              changes.emplace_back(EraseShard{key});
              written[key] = std::nullopt;
            } else {
              const ShardRecord record{.slot = random(),
                                       .generation = random(),
                                       .state = ShardState::kPublished,
                                       .touch_minute = static_cast<std::uint32_t>(random() % 9)};
              changes.emplace_back(PutShard{{key, record}});
              written[key] = record;
            }
          }
          const bool is_synced = random() % 2 == 0;
          const absl::Status status =
              (*opened)->commit(changes, is_synced ? Durability::kSynced : Durability::kBuffered);
          if (!status.ok()) break;
          if (is_synced) in_doubt.clear();
          if (random() % 20 == 0 && (*opened)->store_minute(minute + 1).ok()) {
            ++minute;
            in_doubt.clear();
          }
        }
      }
      disk.restart();
      const auto opened = open_rocks_index(options);
      ASSERT_TRUE(opened.ok()) << opened.status();
      EXPECT_GE((*opened)->stored_minute(), minute);
      minute = (*opened)->stored_minute();
      std::size_t found = 0;
      for (std::uint64_t number = 0; number < 50; ++number) {
        const BlockKey key = key_of(number);
        const auto record = (*opened)->find(key).value();
        if (in_doubt.count(key) == 0) {
          EXPECT_EQ(record, written[key]) << number;
        }
        written[key] = record;
        if (record) ++found;
      }
      in_doubt.clear();
      EXPECT_EQ((*opened)->list(std::nullopt, 1000).value().size(), found);
      EXPECT_EQ((*opened)->oldest(std::nullopt, 1000).value().size(), found);
    }
  }
}

}  // namespace
}  // namespace millrace::storage::index
