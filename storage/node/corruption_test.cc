// A rotting medium: every wrong byte is found before it is served, counted, and repaired.

#include <gtest/gtest.h>

#include <cstdio>

#include "common/str_cat.h"
#include "storage/node/group_rig.h"

namespace millrace::storage::node {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMembers = GroupRig::kMembers;
constexpr std::uint64_t kBlocks = 20;

enum class Damage { kBitFlips, kSwappedSlots, kOldGeneration, kTruncated, kZeros, kWrongIndex };
constexpr int kDamages = 6;

class Rot {
 public:
  explicit Rot(GroupRig& rig) : rig_(rig) {}

  /// Damages one shard.
  void damage(std::size_t member, std::uint64_t key, Damage kind) {
    std::mt19937_64& random = rig_.random();
    std::vector<std::byte> shard = slot_of(member, key);
    const index::ShardRecord record = record_of(member, key);
    switch (kind) {
      case Damage::kBitFlips:
        for (std::uint64_t i = 0; i < 1 + random() % 3; ++i)
          shard[random() % record.shard_bytes] ^= std::byte{1} << (random() % 8);
        if (shard == slot_of(member, key)) shard[0] ^= std::byte{1};  // two flips undid each other
        break;
      case Damage::kSwappedSlots:
        shard = slot_of(member, key % kBlocks + 1);
        break;
      case Damage::kOldGeneration: {
        ShardHeader header;
        EXPECT_EQ(read_shard(shard, header), ShardDefect::kNone);
        header.generation -= 1;
        shard.resize(record.shard_bytes);
        seal_shard(header, shard);
        break;
      }
      case Damage::kTruncated: {
        const std::size_t kept = random() % (record.shard_bytes - 1);
        std::fill(shard.begin() + static_cast<std::ptrdiff_t>(kept), shard.end(), std::byte{0});
        break;
      }
      case Damage::kZeros:
        std::fill(shard.begin(), shard.end(), std::byte{0});
        break;
      case Damage::kWrongIndex:
        shard = slot_of((member + 1) % kMembers, key);
        break;
    }
    rig_.disk(member).corrupt(file_of(member), record.slot * 4096, shard);
  }

 private:
  index::ShardRecord record_of(std::size_t member, std::uint64_t key) {
    return rig_.index(member).find(test_key(key)).value().value();
  }
  disk::SimulatedDisk::FileId file_of(std::size_t member) {
    return *rig_.disk(member).find("/disk/slots");
  }
  std::vector<std::byte> slot_of(std::size_t member, std::uint64_t key) {
    std::vector<std::byte> bytes(4096);
    EXPECT_EQ(
        rig_.disk(member).read(file_of(member), record_of(member, key).slot * 4096, bytes).value(),
        bytes.size());
    return bytes;
  }

  GroupRig& rig_;
};

TEST(Corruption, AThousandRandomDamagesAreAllFoundCountedAndRepaired) {
  GroupRig rig({.seed = 99, .settings = {.slot_grace = milliseconds(100)}});
  for (std::uint64_t key = 1; key <= kBlocks; ++key) ASSERT_TRUE(rig.write_block(key, 10));
  Rot rot(rig);
  std::map<ShardDefect, int> found;
  for (int i = 0; i < 1000; ++i) {
    SCOPED_TRACE(str_cat("damage ", i));
    const std::size_t member = rig.random()() % kMembers;
    const std::uint64_t key = 1 + rig.random()() % kBlocks;
    rot.damage(member, key, static_cast<Damage>(i % kDamages));
    const auto reply = rig.ask(member, ReadShard{test_key(key)});
    ASSERT_TRUE(reply);
    ASSERT_EQ(reply->result, ShardResult::kBadShard);
    ASSERT_TRUE(reply->shard.empty());
    ++found[reply->defect];
    rig.turns(150, milliseconds(5));
    ASSERT_EQ(rig.shards_of(key), kMembers) << "repaired";
  }
  double counted = 0;
  for (const auto& [defect, count] : found) {
    const double value = rig.metrics().defects.with({"serve", shard_defect_name(defect)}).value();
    EXPECT_EQ(value, count) << shard_defect_name(defect);
    std::printf("found %4d times: %s\n", count, shard_defect_name(defect));
    counted += value;
  }
  EXPECT_EQ(counted, 1000);
  EXPECT_GE(rig.metrics().rebuilds.with({"rebuilt"}).value(), 1000);
  EXPECT_EQ(rig.wrong(), std::vector<std::string>());
}

TEST(Corruption, AReadThatComesShortIsAnErrorAndIsRepaired) {
  TargetRig rig({});
  rig.store({.key = 1});
  const auto record = rig.index().find(test_key(1)).value().value();
  ASSERT_TRUE(rig.disk().truncate(rig.io().file(), record.slot * 4096 + 100).ok());
  const ShardReply reply = rig.ask(ReadShard{test_key(1)});
  EXPECT_EQ(reply.result, ShardResult::kIoError);
  EXPECT_NE(reply.message.find("short count"), std::string::npos) << reply.message;
  EXPECT_EQ(rig.target().repair_backlog(), 1U);
}

}  // namespace
}  // namespace millrace::storage::node
