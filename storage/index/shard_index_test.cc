#include "storage/index/shard_index.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "common/str_cat.h"
#include "storage/index/record_codec.h"

namespace millrace::storage::index {
namespace {

BlockKey key_of(std::uint64_t number) {
  BlockKey key;
  std::mt19937_64 random(number);
  for (std::uint8_t& byte : key.bytes) byte = static_cast<std::uint8_t>(random());
  return key;
}

ShardRecord record(std::uint64_t slot, ShardState state = ShardState::kPublished,
                   std::uint32_t minute = 0, std::uint32_t depth = 0) {
  return {.slot = slot,
          .generation = slot + 100,
          .state = state,
          .ttl = TtlClass::kAgent,
          .depth = depth,
          .touch_minute = minute,
          .shard_bytes = 640};
}

TargetIdentity identity() {
  return {.cluster_id = "c1", .target_id = "t1", .slot_bytes = 4096, .slot_count = 1000};
}

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(str_cat(testing::TempDir(), "shard_index_", ::getpid())) {
    std::filesystem::remove_all(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

enum class Kind { kMemory, kRocks };

std::unique_ptr<ShardIndex> open(Kind kind, const std::string& path) {
  if (kind == Kind::kMemory) return make_memory_index(identity());
  auto opened = open_rocks_index({.path = path, .identity = identity()});
  EXPECT_TRUE(opened.ok()) << opened.status();
  return std::move(*opened);
}

class ShardIndexContract : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override { index_ = open(GetParam(), folder_.path()); }

  void put(std::uint64_t number, const ShardRecord& value) {
    const IndexChange change = PutShard{{key_of(number), value}};
    ASSERT_TRUE(index_->commit({&change, 1}, Durability::kSynced).ok());
  }

  std::vector<std::uint64_t> oldest_slots(const std::optional<ShardEntry>& after = std::nullopt,
                                          std::size_t limit = 100) {
    std::vector<std::uint64_t> slots;
    const auto entries = index_->oldest(after, limit);
    EXPECT_TRUE(entries.ok());
    for (const ShardEntry& entry : *entries) slots.push_back(entry.record.slot);
    return slots;
  }

  TemporaryFolder folder_;
  std::unique_ptr<ShardIndex> index_;
};

TEST_P(ShardIndexContract, FindsWhatWasPutAndNothingElse) {
  put(1, record(7));
  EXPECT_EQ(index_->find(key_of(1)).value(), record(7));
  EXPECT_EQ(index_->find(key_of(2)).value(), std::nullopt);
  const std::vector<BlockKey> keys = {key_of(2), key_of(1), key_of(2)};
  const auto many = index_->find_many(keys).value();
  ASSERT_EQ(many.size(), 3U);
  EXPECT_EQ(many[0], std::nullopt);
  EXPECT_EQ(many[1], record(7));
  EXPECT_EQ(many[2], std::nullopt);
}

TEST_P(ShardIndexContract, EvictionTakesTheOldestMinuteFirstThenTheDeepest) {
  put(1, record(1, ShardState::kPublished, 5, 0));
  put(2, record(2, ShardState::kPublished, 5, 9));
  put(3, record(3, ShardState::kPublished, 4, 1));
  put(4, record(4, ShardState::kPending, 0, 0));
  put(5, record(5, ShardState::kPublished, 256, 3));
  EXPECT_EQ(oldest_slots(), (std::vector<std::uint64_t>{3, 2, 1, 5}));
  EXPECT_EQ(oldest_slots(std::nullopt, 2), (std::vector<std::uint64_t>{3, 2}));
  EXPECT_EQ(oldest_slots(ShardEntry{key_of(2), record(2, ShardState::kPublished, 5, 9)}),
            (std::vector<std::uint64_t>{1, 5}));
}

TEST_P(ShardIndexContract, ATouchMovesAShardInTheOrderOfAges) {
  put(1, record(1, ShardState::kPublished, 1));
  put(2, record(2, ShardState::kPublished, 2));
  put(1, record(1, ShardState::kPublished, 3));
  EXPECT_EQ(oldest_slots(), (std::vector<std::uint64_t>{2, 1}));
}

TEST_P(ShardIndexContract, ChangesOfOneCommitFollowEachOther) {
  const std::vector<IndexChange> changes = {
      PutShard{{key_of(1), record(1, ShardState::kPending)}},
      PutShard{{key_of(1), record(1, ShardState::kPublished, 2)}},
      PutShard{{key_of(2), record(2, ShardState::kPublished, 1)}},
      EraseShard{key_of(2)},
      EraseShard{key_of(3)},
  };
  ASSERT_TRUE(index_->commit(changes, Durability::kSynced).ok());
  EXPECT_EQ(oldest_slots(), (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(index_->find(key_of(2)).value(), std::nullopt);
}

TEST_P(ShardIndexContract, ListsInOrderOfKeysBehindAKey) {
  for (std::uint64_t i = 1; i <= 10; ++i)
    put(i, record(i, i % 2 == 0 ? ShardState::kPending : ShardState::kPublished));
  const auto all = index_->list(std::nullopt, 100).value();
  ASSERT_EQ(all.size(), 10U);
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_LT(all[i - 1].key, all[i].key);
  const auto rest = index_->list(all[3].key, 2).value();
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_EQ(rest[0], all[4]);
  EXPECT_EQ(rest[1], all[5]);
  EXPECT_TRUE(index_->list(all.back().key, 5).value().empty());
}

TEST_P(ShardIndexContract, VisitsEachOnceAndStopsAtAnError) {
  for (std::uint64_t i = 1; i <= 10; ++i) put(i, record(i));
  std::set<std::uint64_t> slots;
  ASSERT_TRUE(index_
                  ->for_each([&](const ShardEntry& entry) {
                    EXPECT_TRUE(slots.insert(entry.record.slot).second);
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(slots.size(), 10U);
  int visits = 0;
  EXPECT_EQ(index_
                ->for_each([&](const ShardEntry&) {
                  return ++visits == 3 ? absl::DataLossError("enough") : absl::OkStatus();
                })
                .code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(visits, 3);
}

TEST_P(ShardIndexContract, TheMinuteOnlyGrows) {
  EXPECT_EQ(index_->stored_minute(), 0U);
  ASSERT_TRUE(index_->store_minute(90).ok());
  ASSERT_TRUE(index_->store_minute(12).ok());
  EXPECT_EQ(index_->stored_minute(), 90U);
}

TEST_P(ShardIndexContract, KeepsOnePlaceOrNone) {
  EXPECT_EQ(index_->stored_place(), std::nullopt);
  const StoredPlace first = {.place = {.group_id = 1, .shard_index = 2}, .is_compared = true};
  ASSERT_TRUE(index_->store_place({}).ok());
  ASSERT_TRUE(index_->store_place(first).ok());
  EXPECT_EQ(index_->stored_place(), first);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ShardIndexContract, testing::Values(Kind::kMemory, Kind::kRocks),
                         [](const testing::TestParamInfo<Kind>& kind) {
                           return kind.param == Kind::kMemory ? "Memory" : "Rocks";
                         });

TEST(RocksIndex, AnswersAsTheReferenceDoesOverManyRandomChangesAndRestarts) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    const TemporaryFolder folder;
    std::mt19937_64 random(seed);
    const auto reference = make_memory_index(identity());
    // Small buffers, so that flushes and compactions take part.
    const RocksIndexOptions options = {
        .path = folder.path(), .identity = identity(), .write_buffer_bytes = 64 << 10};
    auto opened = open_rocks_index(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    std::unique_ptr<ShardIndex> index = std::move(*opened);
    for (int step = 0; step < 400; ++step) {
      std::vector<IndexChange> changes;
      for (std::uint64_t i = 0; i < 1 + random() % 8; ++i) {
        const BlockKey key = key_of(random() % 200);
        if (random() % 3 == 0) {
          changes.emplace_back(EraseShard{key});
        } else {
          changes.emplace_back(PutShard{
              {key, record(random() % 1000,
                           random() % 4 == 0 ? ShardState::kPending : ShardState::kPublished,
                           static_cast<std::uint32_t>(random() % 600),
                           static_cast<std::uint32_t>(random() % 600))}});
        }
      }
      const Durability durability = random() % 2 == 0 ? Durability::kSynced : Durability::kBuffered;
      ASSERT_TRUE(reference->commit(changes, durability).ok());
      ASSERT_TRUE(index->commit(changes, durability).ok());
      if (step % 100 == 99) {
        index.reset();
        opened = open_rocks_index(options);
        ASSERT_TRUE(opened.ok()) << opened.status();
        index = std::move(*opened);
      }
      if (step % 20 != 0) continue;
      const BlockKey key = key_of(random() % 250);
      EXPECT_EQ(index->find(key).value(), reference->find(key).value());
      EXPECT_EQ(index->list(key, 50).value(), reference->list(key, 50).value());
      const auto ages = reference->oldest(std::nullopt, 300).value();
      EXPECT_EQ(index->oldest(std::nullopt, 300).value(), ages);
      if (!ages.empty()) {
        const ShardEntry& after = ages[random() % ages.size()];
        EXPECT_EQ(index->oldest(after, 20).value(), reference->oldest(after, 20).value());
      }
    }
  }
}

TEST(RocksIndex, KeepsShardsMinuteAndPlaceOverARestart) {
  const TemporaryFolder folder;
  const StoredPlace place = {
      .place = {.group_id = 70'000, .shard_index = 11, .data_shards = 10, .parity_shards = 2},
      .is_compared = true};
  {
    const auto index = open(Kind::kRocks, folder.path());
    const IndexChange change = PutShard{{key_of(1), record(1)}};
    ASSERT_TRUE(index->commit({&change, 1}, Durability::kSynced).ok());
    ASSERT_TRUE(index->store_minute(5).ok());
    ASSERT_TRUE(index->store_place(place).ok());
  }
  const auto index = open(Kind::kRocks, folder.path());
  EXPECT_EQ(index->find(key_of(1)).value(), record(1));
  EXPECT_EQ(index->stored_minute(), 5U);
  EXPECT_EQ(index->stored_place(), place);
}

TEST(RocksIndex, RefusesAnotherTargetsFolderAndNamesBoth) {
  const TemporaryFolder folder;
  open(Kind::kRocks, folder.path()).reset();
  const auto refused = [&](const TargetIdentity& other, const char* found, const char* wanted) {
    const auto opened = open_rocks_index({.path = folder.path(), .identity = other});
    ASSERT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition) << opened.status();
    EXPECT_NE(opened.status().message().find(found), absl::string_view::npos) << opened.status();
    EXPECT_NE(opened.status().message().find(wanted), absl::string_view::npos) << opened.status();
    EXPECT_NE(opened.status().message().find(folder.path()), absl::string_view::npos);
  };
  TargetIdentity other = identity();
  other.cluster_id = "c2";
  refused(other, "c1", "c2");
  other = identity();
  other.target_id = "t2";
  refused(other, "t1", "t2");
  other = identity();
  other.slot_bytes = 8192;
  refused(other, "4096", "8192");
  other = identity();
  other.slot_count = 2000;
  refused(other, "1000", "2000");
  other = identity();
  other.layout_version = 9;
  refused(other, "1", "9");
}

/// Bytes that this process has read so far, from files or from the page cache.
std::uint64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string name;
  std::uint64_t value = 0;
  while (file >> name >> value) {
    if (name == "rchar:") return value;
  }
  ADD_FAILURE() << "/proc/self/io has no rchar";
  return 0;
}

TEST(RocksIndex, LookingUpReadsFewBlocksHoweverLargeTheIndexIs) {
  const TemporaryFolder folder;
  TargetIdentity large = identity();
  constexpr std::uint64_t kRecords = 40'000;
  large.slot_count = kRecords;
  // Filters and indexes of one file are larger than this cache, as those of a full target are
  // larger than one shard of the real one.
  const RocksIndexOptions options = {.path = folder.path(),
                                     .identity = large,
                                     .cache_bytes = 20 << 10,
                                     .write_buffer_bytes = 64 << 20};
  {
    const auto index = open_rocks_index(options);
    ASSERT_TRUE(index.ok()) << index.status();
    std::vector<IndexChange> batch;
    for (std::uint64_t number = 0; number < kRecords; ++number) {
      batch.push_back(PutShard{{key_of(number), record(number)}});
      if (batch.size() < 1000) continue;
      ASSERT_TRUE((*index)->commit(batch, Durability::kBuffered).ok());
      batch.clear();
    }
  }
  const auto index = open_rocks_index(options);  // all of it is in files now
  ASSERT_TRUE(index.ok()) << index.status();
  const std::uint64_t before = bytes_read();
  constexpr std::uint64_t kFinds = 500;
  for (std::uint64_t i = 0; i < kFinds; ++i) {
    const auto found = (*index)->find(key_of(i * 199 % kRecords));
    ASSERT_TRUE(found.ok() && found->has_value());
  }
  // A part of the filter, one of the index, and the block of the record: 4 KiB each.
  EXPECT_LT((bytes_read() - before) / kFinds, 24U << 10);
}

TEST(RocksIndex, ASecondOpenerIsRefused) {
  const TemporaryFolder folder;
  const auto first = open(Kind::kRocks, folder.path());
  const auto second = open_rocks_index({.path = folder.path(), .identity = identity()});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.status();
}

TEST(RocksIndex, ADamagedFolderIsDataLossByName) {
  const TemporaryFolder folder;
  open(Kind::kRocks, folder.path()).reset();
  std::ofstream(folder.path() + "/CURRENT") << "nothing of ours\n";
  const auto opened = open_rocks_index({.path = folder.path(), .identity = identity()});
  ASSERT_EQ(opened.status().code(), absl::StatusCode::kDataLoss) << opened.status();
  EXPECT_NE(opened.status().message().find(folder.path()), absl::string_view::npos);
}

TEST(RecordCodec, RefusesWhatItDoesNotWrite) {
  const std::string good = encode_record(record(3));
  EXPECT_EQ(good.size(), 32U);
  EXPECT_EQ(decode_record(good), record(3));
  for (const std::size_t byte : {0U, 1U, 2U, 3U}) {
    std::string bad = good;
    bad[byte] = 9;
    EXPECT_EQ(decode_record(bad), std::nullopt) << byte;
  }
  EXPECT_EQ(decode_record(std::string_view(good).substr(1)), std::nullopt);
  const std::string whole = encode_identity(identity());
  EXPECT_EQ(decode_identity(whole), identity());
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_EQ(decode_identity(std::string_view(whole).substr(0, size)), std::nullopt) << size;
  EXPECT_EQ(decode_identity(whole + "x"), std::nullopt);
  const std::string place = encode_place({});
  EXPECT_EQ(decode_place(place), StoredPlace());
  EXPECT_EQ(decode_place(place.substr(1)), std::nullopt);
  EXPECT_EQ(decode_place(place.substr(0, 7) + "\x02"), std::nullopt);
}

}  // namespace
}  // namespace millrace::storage::index
