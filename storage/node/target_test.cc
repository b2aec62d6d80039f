#include "storage/node/target.h"

#include <gtest/gtest.h>

#include "storage/node/target_rig.h"

namespace millrace::storage::node {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

TEST(Target, AShardIsReadAsItWasWrittenOnceItIsPublished) {
  TargetRig rig({});
  const std::vector<std::byte> shard = sealed_shard({.key = 1});
  ASSERT_EQ(rig.ask(WriteShard{shard}).result, ShardResult::kOk);
  EXPECT_EQ(rig.ask(ReadShard{test_key(1)}).result, ShardResult::kNotFound);
  EXPECT_FALSE(rig.is_published(1));
  const ShardReply published = rig.ask(PublishShard{test_key(1), 1});
  EXPECT_EQ(published.result, ShardResult::kOk);
  EXPECT_TRUE(published.is_published);
  const ShardReply read = rig.ask(ReadShard{test_key(1)});
  EXPECT_EQ(read.result, ShardResult::kOk);
  EXPECT_EQ(read.shard, shard);
  EXPECT_EQ(read.generation, 1U);
  EXPECT_TRUE(rig.is_published(1));
}

TEST(Target, AnswersAWriteOnlyWhenItsSyncAndItsRecordAreDurable) {
  TargetRig rig({});
  bool is_answered = false;
  rig.target().handle(
      WriteShard{sealed_shard({.key = 1})}, [&](const ShardReply&) { is_answered = true; },
      rig.now());
  rig.target().end_turn(rig.now());
  EXPECT_EQ(rig.io().in_flight(), 1U) << "the write";
  rig.turn();
  EXPECT_FALSE(is_answered);
  EXPECT_EQ(rig.io().in_flight(), 1U) << "the sync";
  rig.turn();
  EXPECT_TRUE(is_answered);
  EXPECT_TRUE(rig.index().find(test_key(1)).value().has_value());
}

TEST(Target, ManyWritesShareOneSync) {
  TargetRig rig({});
  int answered = 0;
  for (std::uint64_t key = 1; key <= 8; ++key)
    rig.target().handle(
        WriteShard{sealed_shard({.key = key})},
        [&](const ShardReply& reply) { answered += reply.result == ShardResult::kOk ? 1 : 0; },
        rig.now());
  rig.turn();
  EXPECT_EQ(rig.io().in_flight(), 1U);
  rig.turn();
  EXPECT_EQ(answered, 8);
}

TEST(Target, TheFirstWriterWinsAndStoredBlocksStay) {
  TargetRig rig({});
  ASSERT_EQ(rig.ask(WriteShard{sealed_shard({.key = 1, .generation = 5})}).result,
            ShardResult::kOk);
  ShardReply other = rig.ask(WriteShard{sealed_shard({.key = 1, .generation = 6})});
  EXPECT_EQ(other.result, ShardResult::kExists);
  EXPECT_EQ(other.generation, 5U);
  EXPECT_FALSE(other.is_published);
  EXPECT_EQ(rig.ask(WriteShard{sealed_shard({.key = 1, .generation = 5})}).result, ShardResult::kOk)
      << "a repeated write is the same write";
  EXPECT_EQ(rig.ask(PublishShard{test_key(1), 6}).result, ShardResult::kNotFound);
  ASSERT_EQ(rig.ask(PublishShard{test_key(1), 5}).result, ShardResult::kOk);
  EXPECT_EQ(rig.ask(PublishShard{test_key(1), 5}).result, ShardResult::kOk);
  other = rig.ask(WriteShard{sealed_shard({.key = 1, .generation = 6})});
  EXPECT_EQ(other.result, ShardResult::kExists);
  EXPECT_TRUE(other.is_published);
  EXPECT_EQ(rig.ask(DropShard{test_key(1), 6}).result, ShardResult::kOk);
  EXPECT_TRUE(rig.is_published(1)) << "another generation's drop is not ours";
}

TEST(Target, AWriteInFlightIsSeenByASecondWriterAndEndsWithItsDrop) {
  TargetRig rig({});
  std::optional<ShardReply> first;
  rig.target().handle(
      WriteShard{sealed_shard({.key = 1, .generation = 5})},
      [&](ShardReply reply) { first = std::move(reply); }, rig.now());
  EXPECT_EQ(rig.target().io_in_flight(), 1U);
  std::optional<ShardReply> second;
  rig.target().handle(
      WriteShard{sealed_shard({.key = 1, .generation = 6})},
      [&](ShardReply reply) { second = std::move(reply); }, rig.now());
  ASSERT_TRUE(second);
  EXPECT_EQ(second->result, ShardResult::kExists);
  rig.target().handle(
      DropShard{test_key(1), 5}, [](const ShardReply&) {}, rig.now());
  for (int i = 0; i < 5; ++i) rig.turn();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->result, ShardResult::kNotFound);
  EXPECT_EQ(rig.target().slots().free_count(), rig.target().slots().slot_count());
}

TEST(Target, RefusesShardsThatAreNotItsOwnByName) {
  TargetRig rig({});
  const ShardReply index = rig.ask(WriteShard{sealed_shard({.key = 1, .shard_index = 2})});
  EXPECT_EQ(index.result, ShardResult::kInvalid);
  EXPECT_NE(index.message.find("shard 2"), std::string::npos) << index.message;
  EXPECT_NE(index.message.find("shard 1"), std::string::npos) << index.message;
  std::vector<std::byte> bad = sealed_shard({.key = 1});
  bad[200] ^= std::byte{1};
  const ShardReply damaged = rig.ask(WriteShard{bad});
  EXPECT_EQ(damaged.result, ShardResult::kInvalid);
  EXPECT_EQ(damaged.defect, ShardDefect::kChecksum);
  std::vector<std::byte> longer = sealed_shard({.key = 1});
  longer.resize(longer.size() + 1);
  EXPECT_EQ(rig.ask(WriteShard{longer}).result, ShardResult::kInvalid);
  rig.target().set_place(std::nullopt);
  EXPECT_EQ(rig.ask(WriteShard{sealed_shard({.key = 1})}).result, ShardResult::kBusy);
}

TEST(Target, AFreedSlotWaitsForTheGraceAndForReads) {
  TargetRig rig({.slots = 1});
  rig.store({.key = 1});
  EXPECT_EQ(rig.ask(WriteShard{sealed_shard({.key = 2})}).result, ShardResult::kFull);
  std::optional<ShardReply> late;
  rig.target().handle(
      ReadShard{test_key(1)}, [&](ShardReply reply) { late = std::move(reply); }, rig.now());
  std::optional<ShardReply> dropped;
  rig.target().handle(
      DropShard{test_key(1), 0}, [&](ShardReply reply) { dropped = std::move(reply); }, rig.now());
  rig.target().end_turn(rig.now());  // the read hangs in the disk
  ASSERT_TRUE(dropped);
  rig.advance(seconds(60));
  rig.target().end_turn(rig.now());
  EXPECT_EQ(rig.target().slots().free_count(), 0U) << "a read is in flight";
  rig.turn();
  ASSERT_TRUE(late);
  EXPECT_EQ(late->shard, sealed_shard({.key = 1}));
  rig.turn();
  EXPECT_EQ(rig.target().slots().free_count(), 1U);

  rig.store({.key = 2});
  ASSERT_EQ(rig.ask(DropShard{test_key(2), 0}).result, ShardResult::kOk);
  rig.advance(seconds(9));
  rig.turn();
  EXPECT_EQ(rig.ask(WriteShard{sealed_shard({.key = 3})}).result, ShardResult::kFull);
  rig.advance(seconds(2));
  rig.turn();
  EXPECT_EQ(rig.ask(WriteShard{sealed_shard({.key = 3})}).result, ShardResult::kOk);
}

TEST(Target, ALeasedShardIsDroppedWhenItsLeaseEnds) {
  TargetRig rig({});
  rig.store({.key = 1});
  const ShardReply leased =
      rig.ask(QueryKeys{.keys = {test_key(1), test_key(2)}, .lease = seconds(20)});
  EXPECT_EQ(leased.present, (std::vector<bool>{true, false}));
  EXPECT_EQ(rig.ask(DropShard{test_key(1), 0}).result, ShardResult::kOk);
  rig.advance(seconds(19));
  rig.turn();
  EXPECT_EQ(rig.ask(ReadShard{test_key(1)}).result, ShardResult::kOk);
  EXPECT_FALSE(rig.target().begin_eviction(test_key(1), rig.now()));
  rig.advance(seconds(2));
  rig.turn();
  EXPECT_EQ(rig.ask(ReadShard{test_key(1)}).result, ShardResult::kNotFound);
}

TEST(Target, LeasesAreBoundedInTimeAndNumber) {
  TargetRig rig({.settings = {.max_leases = 2}});
  for (std::uint64_t key = 1; key <= 3; ++key) rig.store({.key = key});
  EXPECT_EQ(
      rig.ask(QueryKeys{.keys = {test_key(1), test_key(2)}, .lease = std::chrono::hours(9)}).result,
      ShardResult::kOk);
  EXPECT_EQ(rig.ask(QueryKeys{.keys = {test_key(3)}, .lease = seconds(1)}).result,
            ShardResult::kBusy);
  rig.advance(seconds(61));
  rig.turn();
  EXPECT_EQ(rig.target().leases().size(), 0U);
}

TEST(Target, AnEvictionThatHasBegunIsHiddenFromQueries) {
  TargetRig rig({});
  rig.store({.key = 1});
  ASSERT_TRUE(rig.target().begin_eviction(test_key(1), rig.now()));
  EXPECT_FALSE(rig.is_published(1));
  EXPECT_EQ(rig.ask(ReadShard{test_key(1)}).result, ShardResult::kOk) << "still there";
  rig.target().evict(test_key(1), 1, EvictReason::kTtl);
  rig.turn();
  EXPECT_EQ(rig.ask(ReadShard{test_key(1)}).result, ShardResult::kNotFound);
}

TEST(Target, TouchesCountOnceAMinuteAndTheLongerClassStays) {
  TargetRig rig({});
  rig.store({.key = 1});
  const auto record = [&] { return rig.index().find(test_key(1)).value().value(); };
  const std::uint32_t before = record().touch_minute;
  rig.advance(minutes(5));
  ASSERT_EQ(rig.ask(TouchKeys{{test_key(1), test_key(9)}, TtlClass::kChatbot}).result,
            ShardResult::kOk);
  rig.turn();
  EXPECT_EQ(record().touch_minute, before + 5);
  EXPECT_EQ(record().ttl, TtlClass::kChatbot);
  rig.ask(TouchKeys{{test_key(1)}, TtlClass::kAgent});
  rig.turn();
  EXPECT_EQ(record().ttl, TtlClass::kChatbot);
}

TEST(Target, ItsClockGoesOnFromWhereItWasWithoutTheTimeInBetween) {
  TargetRig rig({});
  rig.advance(minutes(30));
  rig.turn();
  EXPECT_EQ(rig.target().minute(rig.now()), 30U);
  rig.advance(std::chrono::hours(100));  // down: nobody counts
  ASSERT_TRUE(rig.open().ok());
  EXPECT_EQ(rig.target().minute(rig.now()), 30U);
  EXPECT_EQ(rig.target().minute(rig.now() - minutes(10)), 30U) << "never back";
  rig.advance(minutes(1));
  EXPECT_EQ(rig.target().minute(rig.now()), 31U);
}

TEST(Target, ListsInPagesAndFindsOneKeyByItsPredecessor) {
  TargetRig rig({});
  for (std::uint64_t key = 1; key <= 5; ++key) rig.store({.key = key, .depth = 7});
  const ShardReply first = rig.ask(ListShards{.after = {}, .from_start = true, .limit = 3});
  ASSERT_EQ(first.listed.size(), 3U);
  EXPECT_FALSE(first.is_end);
  EXPECT_EQ(first.listed[0].depth, 7U);
  const ShardReply rest =
      rig.ask(ListShards{.after = first.listed[2].key, .from_start = false, .limit = 3});
  EXPECT_EQ(rest.listed.size(), 2U);
  EXPECT_TRUE(rest.is_end);
  const ShardReply one = rig.ask(
      ListShards{.after = key_before(test_key(4)).value(), .from_start = false, .limit = 1});
  ASSERT_EQ(one.listed.size(), 1U);
  EXPECT_EQ(one.listed[0].key, test_key(4));
}

TEST(Target, ADiskThatIsFullRefusesWritesByNameAndServesWhatItHas) {
  TargetRig rig({});
  rig.store({.key = 1});
  rig.disk().set_fault(disk::SimulatedDisk::Fault::kFull);
  const ShardReply refused = rig.ask(WriteShard{sealed_shard({.key = 2})});
  EXPECT_EQ(refused.result, ShardResult::kFull);
  EXPECT_NE(refused.message.find("No space left"), std::string::npos) << refused.message;
  EXPECT_EQ(rig.target().state(), TargetState::kReadOnly);
  EXPECT_EQ(rig.ask(ReadShard{test_key(1)}).result, ShardResult::kOk);
}

TEST(Target, AReadOnlyDiskRefusesWritesByName) {
  TargetRig rig({});
  rig.store({.key = 1});
  rig.disk().set_fault(disk::SimulatedDisk::Fault::kReadOnly);
  const ShardReply refused = rig.ask(WriteShard{sealed_shard({.key = 2})});
  EXPECT_EQ(refused.result, ShardResult::kIoError);
  EXPECT_NE(refused.message.find("Read-only"), std::string::npos) << refused.message;
  EXPECT_EQ(rig.ask(ReadShard{test_key(1)}).result, ShardResult::kOk);
}

TEST(Target, AVanishedDiskFailsTheTargetWithItsReason) {
  TargetRig rig({});
  rig.store({.key = 1});
  rig.disk().set_fault(disk::SimulatedDisk::Fault::kGone);
  EXPECT_EQ(rig.ask(ReadShard{test_key(1)}).result, ShardResult::kIoError);
  EXPECT_EQ(rig.target().state(), TargetState::kFailed);
  const ShardReply refused = rig.ask(WriteShard{sealed_shard({.key = 2})});
  EXPECT_EQ(refused.result, ShardResult::kIoError);
  EXPECT_NE(refused.message.find("gone"), std::string::npos) << refused.message;
  rig.disk().set_fault(disk::SimulatedDisk::Fault::kNone);
  ASSERT_TRUE(rig.open().ok());
  EXPECT_EQ(rig.ask(ReadShard{test_key(1)}).result, ShardResult::kOk) << "no data was harmed";
}

TEST(Target, AFailedSyncIsBelievedOnceAndNotRetried) {
  TargetRig rig({});
  rig.disk().set_fault(disk::SimulatedDisk::Fault::kSyncFails);
  EXPECT_EQ(rig.ask(WriteShard{sealed_shard({.key = 1})}).result, ShardResult::kIoError);
  rig.disk().set_fault(disk::SimulatedDisk::Fault::kNone);
  EXPECT_EQ(rig.ask(WriteShard{sealed_shard({.key = 1})}).result, ShardResult::kIoError);
  EXPECT_EQ(rig.index().find(test_key(1)).value(), std::nullopt);
  EXPECT_EQ(rig.io().in_flight(), 0U);
}

TEST(Target, RefusesAnIndexThatNamesASlotTwice) {
  TargetRig rig({});
  rig.store({.key = 1});
  auto entry = rig.index().find(test_key(1)).value().value();
  const index::IndexChange twin = index::PutShard{{test_key(2), entry}};
  ASSERT_TRUE(rig.index().commit({&twin, 1}, index::Durability::kSynced).ok());
  const absl::Status opened = rig.open();
  EXPECT_EQ(opened.code(), absl::StatusCode::kDataLoss) << opened;
}

TEST(Target, TooMuchInFlightIsBusyAndNothingStalls) {
  TargetRig rig({.slots = 64, .settings = {.queue_depth = 4}});
  int busy = 0;
  int stored = 0;
  for (std::uint64_t key = 1; key <= 10; ++key)
    rig.target().handle(
        WriteShard{sealed_shard({.key = key})},
        [&](const ShardReply& reply) {
          busy += reply.result == ShardResult::kBusy ? 1 : 0;
          stored += reply.result == ShardResult::kOk ? 1 : 0;
        },
        rig.now());
  for (int i = 0; i < 10; ++i) rig.turn();
  EXPECT_EQ(stored, 3);
  EXPECT_EQ(busy, 7);
}

TEST(Target, ARebuildEndsWithADropOfItsBlockAndOfNoOther) {
  for (const Generation dropped : {Generation{0}, Generation{7}, Generation{8}}) {
    TargetRig rig({});
    ASSERT_TRUE(rig.target().begin_rebuild(test_key(1), 7));
    ASSERT_EQ(rig.ask(DropShard{test_key(1), dropped}).result, ShardResult::kOk);
    std::optional<ShardResult> stored;
    rig.target().store_rebuilt(
        sealed_shard({.key = 1, .generation = 7}), 0,
        [&](const ShardReply& reply) { stored = reply.result; }, rig.now());
    for (int i = 0; i < 4; ++i) rig.turn();
    EXPECT_EQ(stored, dropped == 8 ? ShardResult::kOk : ShardResult::kNotFound) << dropped;
    EXPECT_EQ(rig.is_published(1), dropped == 8) << dropped;
  }
}

constexpr index::ShardPlace kOwnPlace = {.group_id = 0,
                                         .shard_index = 1,
                                         .data_shards = kTestDataShards,
                                         .parity_shards = kTestParityShards};
constexpr index::ShardPlace kOtherPlace = {.group_id = 0,
                                           .shard_index = 3,
                                           .data_shards = kTestDataShards,
                                           .parity_shards = kTestParityShards};

TEST(Target, ASpareKeepsItsShardsAndServesThemInTheirPlaceAgain) {
  TargetRig rig({});
  rig.store({.key = 1});
  rig.target().set_place(std::nullopt);
  EXPECT_EQ(rig.ask(ReadShard{test_key(1)}).result, ShardResult::kBusy);
  rig.turn();
  rig.target().set_place(kOwnPlace);
  EXPECT_FALSE(rig.target().is_emptying());
  EXPECT_EQ(rig.ask(ReadShard{test_key(1)}).result, ShardResult::kOk);
}

TEST(Target, InAnotherPlaceItLetsGoOfEverythingBeforeItServes) {
  TargetRig rig({.settings = {.slot_grace = std::chrono::milliseconds(0)}});
  for (std::uint64_t key = 1; key <= 5; ++key) rig.store({.key = key});
  rig.ask(WriteShard{sealed_shard({.key = 6})});  // stays pending
  rig.target().set_compared(true);
  ASSERT_TRUE(rig.ask(QueryKeys{.keys = {test_key(5)}, .lease = seconds(5)}).present.at(0));
  // One more is on its way when the map changes.
  rig.target().handle(
      WriteShard{sealed_shard({.key = 7})}, [](const ShardReply&) {}, rig.now());
  rig.target().set_place(kOtherPlace);
  EXPECT_TRUE(rig.target().is_emptying());
  const ShardReply refused = rig.ask(WriteShard{sealed_shard({.key = 1, .shard_index = 3})});
  EXPECT_EQ(refused.result, ShardResult::kBusy);
  EXPECT_NE(refused.message.find("another place"), std::string::npos) << refused.message;
  EXPECT_EQ(rig.ask(ReadShard{test_key(5)}).result, ShardResult::kBusy);
  const ShardReply listed = rig.ask(ListShards{.after = {}, .from_start = true});
  EXPECT_EQ(listed.result, ShardResult::kOk);
  EXPECT_TRUE(listed.listed.empty() && listed.is_end) << "nothing of this place";
  for (int i = 0; i < 10; ++i) rig.turn();
  EXPECT_TRUE(rig.target().is_emptying()) << "one is leased";
  EXPECT_EQ(rig.index().list(std::nullopt, 10).value().size(), 1U);
  rig.advance(seconds(6));
  for (int i = 0; i < 10; ++i) rig.turn();
  EXPECT_FALSE(rig.target().is_emptying());
  EXPECT_FALSE(rig.target().is_compared());
  EXPECT_EQ(rig.target().slots().used_count(), 0U);
  EXPECT_TRUE(rig.target().pending().empty());
  EXPECT_EQ(rig.ask(WriteShard{sealed_shard({.key = 1, .shard_index = 3})}).result,
            ShardResult::kOk);
}

TEST(Target, GoesOnEmptyingAfterACrashUnlessItsOldPlaceIsItsOwnAgain) {
  for (const bool is_back : {false, true}) {
    TargetRig rig({.slots = 2000, .on_rocks = true, .settings = {.queue_depth = 16}});
    for (std::uint64_t key = 1; key <= 1200; ++key) rig.store({.key = key});
    rig.target().set_compared(true);
    rig.target().set_place(kOtherPlace);
    rig.turn();
    rig.disk().restart();
    ASSERT_TRUE(rig.open().ok());  // in its own place
    const std::size_t left = rig.index().list(std::nullopt, 2000).value().size();
    EXPECT_EQ(left, 1200U - 1024U);
    EXPECT_FALSE(rig.target().is_compared()) << "it lacks what has gone already";
    if (!is_back) rig.target().set_place(kOtherPlace);
    for (int i = 0; i < 5; ++i) rig.turn();
    EXPECT_FALSE(rig.target().is_emptying());
    EXPECT_EQ(rig.index().list(std::nullopt, 2000).value().size(), is_back ? left : 0U);
    EXPECT_EQ(rig.index().stored_place()->place, is_back ? kOwnPlace : kOtherPlace);
  }
}

TEST(Target, WhatIsBeingRebuiltWhenItsPlaceChangesIsNotStored) {
  TargetRig rig({});
  ASSERT_TRUE(rig.target().begin_rebuild(test_key(1), 7));
  rig.target().set_place(index::ShardPlace{.group_id = 5,
                                           .shard_index = 1,
                                           .data_shards = kTestDataShards,
                                           .parity_shards = kTestParityShards});
  for (int i = 0; i < 4; ++i) rig.turn();
  ASSERT_FALSE(rig.target().is_emptying());
  std::optional<ShardResult> stored;
  rig.target().store_rebuilt(
      sealed_shard({.key = 1, .generation = 7}), 0,
      [&](const ShardReply& reply) { stored = reply.result; }, rig.now());
  EXPECT_EQ(stored, ShardResult::kNotFound);
  EXPECT_FALSE(rig.is_published(1));
}

TEST(SlotTable, GivesEverySlotOnceAndRoundWhenFreed) {
  SlotTable slots(130);
  std::vector<bool> seen(130);
  for (int i = 0; i < 130; ++i) {
    const auto slot = slots.take();
    ASSERT_TRUE(slot);
    EXPECT_FALSE(seen[*slot]);
    seen[*slot] = true;
  }
  EXPECT_FALSE(slots.take());
  const TimePoint start;
  slots.cool(7, start + seconds(1));
  slots.condemn(9);
  slots.reclaim(start);
  EXPECT_EQ(slots.free_count(), 0U);
  EXPECT_EQ(slots.used_count(), 130U);
  slots.reclaim(start + seconds(1));
  EXPECT_EQ(slots.take(), 7U);
  EXPECT_EQ(slots.bad_count(), 1U);
  EXPECT_FALSE(SlotTable(3).mark_used(3));
}

}  // namespace
}  // namespace millrace::storage::node
