// Eviction, rebuild, repair, scrub and pending shards of a whole group.

#include <gtest/gtest.h>

#include "storage/node/group_rig.h"
#include "storage/node/pace.h"

namespace millrace::storage::node {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using Read = GroupRig::Read;

constexpr std::size_t kMembers = GroupRig::kMembers;

std::uint64_t used(GroupRig& rig, std::size_t member) {
  const SlotTable& slots = rig.host(member).target().slots();
  return slots.used_count();
}

TEST(JudgePending, PublishesOnOneWordAndDropsOnlyOnEnoughDenials) {
  EXPECT_EQ(judge_pending(11, 11, 5, 1, 2), PendingVerdict::kPublish);
  EXPECT_EQ(judge_pending(11, 11, 11, 0, 2), PendingVerdict::kDrop);
  EXPECT_EQ(judge_pending(11, 9, 9, 0, 2), PendingVerdict::kDrop);
  EXPECT_EQ(judge_pending(11, 8, 8, 0, 2), PendingVerdict::kWait) << "three are away";
  EXPECT_EQ(judge_pending(11, 11, 10, 0, 2), PendingVerdict::kWait) << "one did not answer";
}

TEST(JudgeEviction, FollowsOwnershipTtlAndWatermarks) {
  const kv::TtlPolicy ttl;
  const std::uint32_t now = 100'000;
  const auto judge = [&](std::uint32_t age, TtlClass cls, bool owner, bool space, bool emergency) {
    return judge_eviction({.touch_minute = now - age,
                           .ttl = cls,
                           .now_minute = now,
                           .is_owner = owner,
                           .is_space_wanted = space,
                           .is_emergency = emergency},
                          ttl, 24 * 60);
  };
  const std::uint32_t three_days = 3 * 24 * 60;
  const std::uint32_t seven_days = 7 * 24 * 60;
  EXPECT_EQ(judge(three_days + 1, TtlClass::kAgent, true, false, false), EvictReason::kTtl);
  EXPECT_EQ(judge(three_days + 1, TtlClass::kChatbot, true, false, false), std::nullopt);
  EXPECT_EQ(judge(seven_days + 1, TtlClass::kChatbot, true, false, false), EvictReason::kTtl);
  EXPECT_EQ(judge(10, TtlClass::kAgent, true, true, false), EvictReason::kWatermark);
  EXPECT_EQ(judge(10, TtlClass::kAgent, false, true, false), std::nullopt);
  EXPECT_EQ(judge(10, TtlClass::kAgent, false, true, true), EvictReason::kEmergency);
  EXPECT_EQ(judge(three_days + 60, TtlClass::kAgent, false, false, false), std::nullopt);
  EXPECT_EQ(judge(three_days + 24 * 60 + 1, TtlClass::kAgent, false, false, false),
            EvictReason::kOrphan);
}

TEST(JudgeBlock, RebuildsWhatOthersHaveAndDropsOnlyWhatCannotComeBack) {
  const auto published = [](std::uint8_t member, Generation generation) {
    return Copy{.member = member, .generation = generation, .is_published = true};
  };
  const std::vector<Copy> three = {published(0, 7), published(2, 7), published(3, 7)};
  EXPECT_EQ(judge_block(std::nullopt, three, 3, 0), BlockVerdict::kRebuild);
  EXPECT_EQ(judge_block(std::nullopt, three, 4, 0), BlockVerdict::kLeave);
  EXPECT_EQ(judge_block(published(1, 7), three, 3, 0), BlockVerdict::kLeave);
  EXPECT_EQ(judge_block(published(1, 6), three, 3, 0), BlockVerdict::kRebuild);
  Copy pending = published(1, 7);
  pending.is_published = false;
  EXPECT_EQ(judge_block(pending, three, 3, 0), BlockVerdict::kPublish);
  pending.generation = 6;
  EXPECT_EQ(judge_block(pending, three, 3, 0), BlockVerdict::kRebuild);
  EXPECT_EQ(judge_block(published(1, 7), {}, 3, 0), BlockVerdict::kDrop);
  EXPECT_EQ(judge_block(published(1, 7), {}, 3, 2), BlockVerdict::kLeave) << "two may have it";
  std::vector<Copy> unpublished = three;
  for (Copy& copy : unpublished) copy.is_published = false;
  EXPECT_EQ(judge_block(published(1, 7), unpublished, 3, 0), BlockVerdict::kLeave)
      << "their publication is on its way";
}

TEST(RebuildQueue, TakesTheMostEndangeredFirstThenThoseUsedLast) {
  RebuildQueue queue(3);
  const auto item = [](std::uint64_t key, int survivors, std::uint32_t age) {
    return RebuildItem{test_key(key), {.generation = 1, .count = survivors, .age_minutes = age}};
  };
  queue.push(item(1, 11, 5));
  queue.push(item(2, 10, 50));
  queue.push(item(3, 10, 7));
  queue.push(item(4, 11, 900));
  EXPECT_TRUE(queue.has_overflowed());
  EXPECT_EQ(queue.pop()->key, test_key(3));
  EXPECT_EQ(queue.pop()->key, test_key(2));
  EXPECT_EQ(queue.pop()->key, test_key(1));
  EXPECT_FALSE(queue.pop());
}

TEST(Pace, KeepsToItsRateAndSavesNothingUp) {
  Pace pace(100);
  TimePoint now = TimePoint() + seconds(100);
  EXPECT_TRUE(pace.is_due(now));
  pace.spend(50, now);
  EXPECT_FALSE(pace.is_due(now + milliseconds(499)));
  EXPECT_TRUE(pace.is_due(now + milliseconds(500)));
  now += seconds(1000);
  pace.spend(100, now);
  EXPECT_FALSE(pace.is_due(now + milliseconds(999))) << "idle time is not credit";
}

TEST(PeerCalls, EndOnceByAnswerOrByDeadlineAndAreBounded) {
  struct Silent final : PeerLink {
    void send(const std::string&, ShardOperation, std::uint64_t call_id) override {
      ids.push_back(call_id);
    }
    std::vector<std::uint64_t> ids;
  } link;
  PeerCalls calls(link, seconds(2), 2);
  std::vector<ShardResult> ended;
  const auto note = [&](const ShardReply& reply) { ended.push_back(reply.result); };
  const TimePoint now = TimePoint() + seconds(100);
  for (int i = 0; i < 3; ++i) calls.ask("t", ReadShard{}, note, now);
  EXPECT_TRUE(ended.empty()) << "never from within";
  calls.expire(now);
  EXPECT_EQ(ended, std::vector<ShardResult>{ShardResult::kBusy});
  ShardReply found;
  found.result = ShardResult::kOk;
  calls.on_reply(link.ids[0], found);
  calls.on_reply(link.ids[0], found);
  calls.expire(now + seconds(2));
  calls.on_reply(link.ids[1], found);
  EXPECT_EQ(ended, (std::vector<ShardResult>{ShardResult::kBusy, ShardResult::kOk,
                                             ShardResult::kUnavailable}));
  EXPECT_EQ(calls.in_flight(), 0U);
}

TEST(Group, ABlockIsWrittenReadAndMissedCleanly) {
  GroupRig rig({});
  ASSERT_TRUE(rig.write_block(1, 10));
  EXPECT_EQ(rig.read_block(1), Read::kGood);
  EXPECT_EQ(rig.shards_of(1), kMembers);
  EXPECT_EQ(rig.read_block(2), Read::kMiss);
  EXPECT_EQ(rig.wrong(), std::vector<std::string>());
}

TEST(Group, BlocksGoWholeWhenTheirTimeIsOverByClass) {
  GroupRig rig({});
  ASSERT_TRUE(rig.write_block(1, 10, TtlClass::kAgent));
  ASSERT_TRUE(rig.write_block(2, 10, TtlClass::kChatbot));
  rig.turns(100, minutes(43));  // of 3 days, 20 minutes are left
  EXPECT_EQ(rig.read_block(1), Read::kGood) << "not yet";
  rig.turn(minutes(25));
  rig.turns(200, milliseconds(50));
  EXPECT_EQ(rig.shards_of(1), 0U);
  EXPECT_EQ(rig.shards_of(2), kMembers);
  rig.turn(minutes(4 * 24 * 60));
  rig.turns(200, milliseconds(50));
  EXPECT_EQ(rig.shards_of(2), 0U);
}

TEST(Group, AJumpOfTheClockWhileItWasDownEndsNothing) {
  GroupRig rig({});
  ASSERT_TRUE(rig.write_block(1, 10));
  for (std::size_t member = 0; member < kMembers; ++member) rig.stop(member);
  rig.turn(minutes(30 * 24 * 60));
  for (std::size_t member = 0; member < kMembers; ++member) rig.start(member);
  rig.turns(200, milliseconds(50));
  EXPECT_EQ(rig.shards_of(1), kMembers);
}

TEST(Group, FilledToThreeTimesItsSizeItStaysUnderTheMarkAndStripesGoWholeInOrder) {
  GroupRig rig({.slots = 100,
                .settings = {.slot_grace = milliseconds(200), .gc_interval = milliseconds(20)}});
  constexpr std::uint64_t kBlocks = 300;
  double highest = 0;
  for (std::uint64_t key = 1; key <= kBlocks; ++key) {
    rig.turn(seconds(31));  // two a minute: the second is deeper in its chain
    ASSERT_TRUE(rig.write_block(key, 10, TtlClass::kAgent, static_cast<std::uint32_t>(key % 2)))
        << key;
    rig.turns(20, milliseconds(20));
    for (std::size_t member = 0; member < kMembers; ++member)
      highest = std::max(highest, static_cast<double>(used(rig, member)) / 100);
  }
  rig.turns(300, milliseconds(20));
  EXPECT_LE(highest, 0.95);
  std::size_t half_dead = 0;
  std::vector<std::uint64_t> left;
  for (std::uint64_t key = 1; key <= kBlocks; ++key) {
    const std::size_t shards = rig.shards_of(key);
    if (shards == kMembers) {
      left.push_back(key);
    } else if (shards != 0) {
      ++half_dead;
    }
  }
  std::printf("gc: highest usage %.2f, %zu blocks left, %zu half-dead stripes\n", highest,
              left.size(), half_dead);
  EXPECT_EQ(half_dead, 0U);
  EXPECT_GE(left.size(), 80U);
  // What is left is the newest, give or take the two of a minute whose deeper one goes first.
  EXPECT_GE(left.front() + left.size() + 1, kBlocks);
  EXPECT_LE(static_cast<double>(used(rig, 0)), 90);
  EXPECT_EQ(rig.wrong(), std::vector<std::string>());
}

TEST(Group, EvictionGoesFromTheOldestMinuteAndInItFromTheDeepest) {
  GroupRig rig(
      {.slots = 10,
       .settings = {.watermarks = {.start = 0.75, .stop = 0.45}, .gc_interval = milliseconds(20)}});
  for (std::uint64_t key = 1; key <= 4; ++key)
    ASSERT_TRUE(rig.write_block(key, 10, TtlClass::kAgent, static_cast<std::uint32_t>(key)));
  rig.turn(minutes(2));
  for (std::uint64_t key = 5; key <= 8; ++key)
    ASSERT_TRUE(rig.write_block(key, 10, TtlClass::kAgent, static_cast<std::uint32_t>(key)));
  rig.turns(300, milliseconds(20));
  std::vector<bool> is_there;
  for (std::uint64_t key = 1; key <= 8; ++key) is_there.push_back(rig.shards_of(key) == kMembers);
  EXPECT_EQ(is_there, (std::vector<bool>{false, false, false, false, true, true, true, true}));
}

TEST(Group, ALeasedBlockOutlivesTheWatermark) {
  GroupRig rig(
      {.slots = 10,
       .settings = {.watermarks = {.start = 0.75, .stop = 0.45}, .gc_interval = milliseconds(20)}});
  for (std::uint64_t key = 1; key <= 8; ++key) {
    ASSERT_TRUE(rig.write_block(key, 10));
    if (key == 1) {
      const auto leased =
          rig.ask(0, QueryKeys{.keys = {test_key(1)}, .lease = milliseconds(60'000)});
      ASSERT_TRUE(leased && leased->present.at(0));
    }
    rig.turn(seconds(1));
  }
  rig.turns(300, milliseconds(20));
  EXPECT_EQ(rig.shards_of(1), kMembers);
  EXPECT_EQ(rig.wrong(), std::vector<std::string>());
}

TEST(Group, PeopleMayAskForSpaceAndLeasesStay) {
  GroupRig rig({.slots = 20});
  for (std::uint64_t key = 1; key <= 10; ++key) ASSERT_TRUE(rig.write_block(key, 10));
  rig.ask(0, QueryKeys{.keys = {test_key(3)}, .lease = milliseconds(60'000)});
  for (std::size_t member = 0; member < kMembers; ++member)
    rig.host(member).evict_to(1, 0.25, rig.now());
  rig.turns(200, milliseconds(20));
  std::size_t left = 0;
  for (std::uint64_t key = 1; key <= 10; ++key) left += rig.shards_of(key) == kMembers ? 1 : 0;
  EXPECT_EQ(left, 5U);
  for (std::size_t member = 0; member < kMembers; ++member) {
    rig.host(member).evict_to(2, 0, rig.now());
    rig.host(member).evict_to(2, 0, rig.now());  // heard twice, done once
  }
  rig.turns(200, milliseconds(20));
  EXPECT_EQ(rig.shards_of(3), kMembers) << "leased";
  EXPECT_EQ(rig.host(0).status(rig.now()).published_shards, 1U);
  for (std::size_t member = 0; member < kMembers; ++member)
    EXPECT_EQ(rig.host(member).status(rig.now()).evict_request, 2U);
}

TEST(Group, WhenTheOwnerIsDownTheNextMemberOwns) {
  GroupRig rig({});
  ASSERT_TRUE(rig.write_block(1, 10));
  rig.stop(0);
  rig.set_state(0, MemberState::kDown);
  rig.turn(minutes(3 * 24 * 60 + 5));
  rig.turns(200, milliseconds(50));
  EXPECT_EQ(rig.shards_of(1), 0U);
}

TEST(Group, AFrozenMemberDelaysAnEvictionByItsTimeoutAlone) {
  GroupRig rig({});
  ASSERT_TRUE(rig.write_block(1, 10));
  rig.stop(3);  // and the map does not know yet
  rig.turn(minutes(3 * 24 * 60 + 5));
  rig.turns(100, milliseconds(50));
  EXPECT_EQ(rig.shards_of(1), 0U);
  EXPECT_EQ(rig.metrics().lost_tombstones.value(), 1);
}

TEST(Group, AMemberThatReturnsFromAnEmptyDiskIsFilledAgain) {
  GroupRig rig({});
  for (std::uint64_t key = 1; key <= 20; ++key) ASSERT_TRUE(rig.write_block(key, 10));
  rig.stop(2);
  rig.set_state(2, MemberState::kDown);
  for (std::uint64_t key = 21; key <= 25; ++key) ASSERT_TRUE(rig.write_block(key, 10));
  rig.start(2, true);
  rig.set_state(2, MemberState::kRebuilding);
  rig.turns(2000, milliseconds(10));
  for (std::uint64_t key = 1; key <= 25; ++key) EXPECT_EQ(rig.shards_of(key), kMembers) << key;
  const RebuildProgress progress = rig.host(2).status(rig.now()).rebuild;
  EXPECT_FALSE(progress.is_running);
  EXPECT_EQ(progress.rebuilt, 25U);
  EXPECT_EQ(progress.complete_at_epoch, rig.map().epoch);
  EXPECT_EQ(rig.wrong(), std::vector<std::string>());
}

TEST(Group, AMemberThatMissedTheMapThatCalledItDownComparesAgain) {
  GroupRig rig({});
  ASSERT_TRUE(rig.write_block(1, 10));
  rig.set_state(2, MemberState::kRebuilding);
  rig.turns(200, milliseconds(10));
  ASSERT_EQ(rig.host(2).status(rig.now()).rebuild.complete_at_epoch, rig.map().epoch);
  // Cut off for a while: a block is written without it, and it sees only the map after that.
  ASSERT_EQ(rig.ask(2, DropShard{test_key(1), 0})->result, ShardResult::kOk);
  rig.change_map([](StorageMap&) {});
  rig.turns(1000, milliseconds(10));
  EXPECT_EQ(rig.shards_of(1), kMembers);
  EXPECT_EQ(rig.host(2).status(rig.now()).rebuild.complete_at_epoch, rig.map().epoch);
}

TEST(Group, AReturningMemberDropsWhatTheOthersEvictedAndCatchesUpOnTheRest) {
  GroupRig rig({});
  for (std::uint64_t key = 1; key <= 6; ++key) ASSERT_TRUE(rig.write_block(key, 10));
  rig.stop(4);
  rig.set_state(4, MemberState::kDown);
  ASSERT_TRUE(rig.host(0).evict_block(test_key(1), rig.now()));
  rig.turns(100);
  ASSERT_TRUE(rig.write_block(1, 11)) << "the same block, written anew";
  ASSERT_TRUE(rig.host(0).evict_block(test_key(2), rig.now()));
  rig.turns(100);
  rig.start(4);
  rig.set_state(4, MemberState::kRebuilding);
  rig.turns(1500, milliseconds(10));
  EXPECT_EQ(rig.shards_of(1), kMembers);
  EXPECT_EQ(rig.index(4).find(test_key(2)).value(), std::nullopt);
  EXPECT_EQ(rig.index(4).find(test_key(1)).value()->generation, 11U);
  EXPECT_EQ(rig.wrong(), std::vector<std::string>());
}

TEST(Group, WhatOnlyAnAbsentMemberCouldCompleteIsMadeWhenItIsBack) {
  GroupRig rig({});
  ASSERT_TRUE(rig.write_block(1, 10));
  // Three are enough: 0, 2 and the one that is away.
  rig.stop(4);
  rig.set_state(4, MemberState::kDown);
  for (const std::size_t member : {1, 3})
    ASSERT_EQ(rig.ask(member, DropShard{test_key(1), 0})->result, ShardResult::kOk);
  rig.set_state(1, MemberState::kRebuilding);
  rig.turns(1000, milliseconds(10));
  const RebuildProgress alone = rig.host(1).status(rig.now()).rebuild;
  EXPECT_EQ(alone.complete_at_epoch, rig.map().epoch) << "nobody waits for who may never come";
  EXPECT_FALSE(alone.has_seen_all);
  rig.set_state(1, MemberState::kUp);
  rig.turns(100, milliseconds(10));
  rig.stop(1);  // and the controller does not notice
  rig.start(1);
  rig.turns(100, milliseconds(10));
  ASSERT_EQ(rig.index(1).find(test_key(1)).value(), std::nullopt);
  rig.start(4);
  rig.set_state(4, MemberState::kRebuilding);
  rig.turns(1000, milliseconds(10));
  EXPECT_NE(rig.index(1).find(test_key(1)).value(), std::nullopt);
  EXPECT_TRUE(rig.host(1).status(rig.now()).rebuild.has_seen_all);
  EXPECT_EQ(rig.wrong(), std::vector<std::string>());
}

TEST(Group, NobodyWaitsForAMemberThatWasReplaced) {
  GroupRig rig({.spares = 1});
  rig.stop(4);
  rig.set_state(4, MemberState::kDown);
  rig.set_state(1, MemberState::kRebuilding);
  rig.turns(300, milliseconds(10));
  ASSERT_FALSE(rig.host(1).status(rig.now()).rebuild.has_seen_all);
  rig.change_map([](StorageMap& map) {
    map.groups[0].members[4] = {.target_id = "t5", .state = MemberState::kRebuilding};
  });
  rig.turns(300, milliseconds(10));
  EXPECT_TRUE(rig.host(1).status(rig.now()).rebuild.has_seen_all);
}

TEST(Group, AComparisonThatACrashCutShortIsMadeAgain) {
  GroupRig rig({});
  for (std::uint64_t key = 1; key <= 20; ++key) ASSERT_TRUE(rig.write_block(key, 10));
  rig.turns(300, milliseconds(10));
  ASSERT_TRUE(rig.host(2).status(rig.now()).rebuild.has_seen_all);
  for (std::uint64_t key = 1; key <= 20; ++key) rig.ask(2, DropShard{test_key(key), 0});
  rig.set_state(2, MemberState::kRebuilding);
  rig.turn(milliseconds(10));
  rig.set_state(2, MemberState::kUp);  // called up too early, or by mistake
  rig.stop(2);
  rig.start(2);
  rig.turns(2000, milliseconds(10));
  for (std::uint64_t key = 1; key <= 20; ++key) EXPECT_EQ(rig.shards_of(key), kMembers) << key;
}

TEST(Group, ATargetThatGetsAnotherPlaceOfItsGroupIsEmptiedAndFilledAgain) {
  GroupRig rig({.spares = 1});
  for (std::uint64_t key = 1; key <= 10; ++key) ASSERT_TRUE(rig.write_block(key, 10));
  rig.change_map([](StorageMap& map) {
    map.groups[0].members[1] = {.target_id = "t5", .state = MemberState::kRebuilding};
  });
  rig.turns(1500, milliseconds(10));
  rig.change_map([](StorageMap& map) {
    map.groups[0].members[1].state = MemberState::kUp;
    map.groups[0].members[3] = {.target_id = "t1", .state = MemberState::kRebuilding};
  });
  rig.turns(2000, milliseconds(10));
  for (std::uint64_t key = 1; key <= 10; ++key) EXPECT_EQ(rig.shards_of(key), kMembers) << key;
  EXPECT_EQ(rig.host(1).status(rig.now()).rebuild.complete_at_epoch, rig.map().epoch);
  EXPECT_EQ(rig.metrics().evictions.with({"displaced"}).value(), 10);
  EXPECT_EQ(rig.wrong(), std::vector<std::string>());
}

TEST(Group, ABlockThatCannotBeMadeAgainIsLetGoOfAndNotLookedAtForEver) {
  GroupRig rig({});
  ASSERT_TRUE(rig.write_block(1, 10));
  const std::vector<std::byte> rot(64, std::byte{0x5a});
  for (const std::size_t member : {1, 2, 4}) {
    const auto record = rig.index(member).find(test_key(1)).value().value();
    rig.disk(member).corrupt(*rig.disk(member).find("/disk/slots"), record.slot * 4096 + 300, rot);
  }
  EXPECT_EQ(rig.read_block(1), Read::kMiss);
  rig.turns(500, milliseconds(10));
  EXPECT_EQ(rig.shards_of(1), 2U);
  for (const std::size_t member : {1, 2, 4}) {
    EXPECT_EQ(rig.index(member).find(test_key(1)).value(), std::nullopt) << member;
    EXPECT_EQ(rig.host(member).status(rig.now()).rebuild.backlog, 0U) << member;
  }
  EXPECT_LE(rig.metrics().rebuilds.with({"impossible"}).value(), 9);
}

TEST(Group, ADamagedShardWaitsForAMemberThatIsAway) {
  GroupRig rig({});
  ASSERT_TRUE(rig.write_block(1, 10));
  rig.stop(4);
  rig.set_state(4, MemberState::kDown);
  ASSERT_EQ(rig.ask(3, DropShard{test_key(1), 0})->result, ShardResult::kOk);
  const auto record = rig.index(1).find(test_key(1)).value().value();
  const std::vector<std::byte> rot(64, std::byte{0x5a});
  rig.disk(1).corrupt(*rig.disk(1).find("/disk/slots"), record.slot * 4096 + 300, rot);
  EXPECT_EQ(rig.read_block(1), Read::kMiss);
  rig.turns(1000, milliseconds(10));
  EXPECT_NE(rig.index(1).find(test_key(1)).value(), std::nullopt);
  EXPECT_LE(rig.metrics().defects.with({"rebuild", "checksum"}).value(), 4) << "not all the time";
  rig.start(4);
  rig.set_state(4, MemberState::kRebuilding);
  rig.turns(2000, milliseconds(10));
  EXPECT_EQ(rig.read_block(1), Read::kGood);
  EXPECT_GE(rig.shards_of(1), 4U);
}

TEST(Group, ASpareThatTakesAPlaceIsFilled) {
  GroupRig rig({.spares = 1});
  for (std::uint64_t key = 1; key <= 10; ++key) ASSERT_TRUE(rig.write_block(key, 10));
  rig.stop(1);
  rig.change_map([](StorageMap& map) {
    map.groups[0].members[1] = {.target_id = "t5", .state = MemberState::kRebuilding};
  });
  rig.turns(1500, milliseconds(10));
  for (std::uint64_t key = 1; key <= 10; ++key) EXPECT_EQ(rig.shards_of(key), kMembers) << key;
  EXPECT_EQ(rig.wrong(), std::vector<std::string>());
}

TEST(Group, ADamagedShardIsNeverServedAndIsRepairedFromTheOthers) {
  GroupRig rig({});
  ASSERT_TRUE(rig.write_block(1, 10));
  const auto record = rig.index(1).find(test_key(1)).value().value();
  const std::vector<std::byte> rot(64, std::byte{0x5a});
  rig.disk(1).corrupt(*rig.disk(1).find("/disk/slots"), record.slot * 4096 + 300, rot);
  const auto bad = rig.ask(1, ReadShard{test_key(1)});
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->result, ShardResult::kBadShard);
  EXPECT_EQ(bad->defect, ShardDefect::kChecksum);
  EXPECT_TRUE(bad->shard.empty());
  rig.turns(500, milliseconds(10));
  EXPECT_EQ(rig.shards_of(1), kMembers);
  EXPECT_EQ(rig.metrics().defects.with({"serve", "checksum"}).value(), 1);
  EXPECT_EQ(rig.metrics().rebuilds.with({"rebuilt"}).value(), 1);
  EXPECT_EQ(rig.wrong(), std::vector<std::string>());
}

TEST(Group, AScrubFindsDamageBeforeReadersDo) {
  GroupRig rig({});
  for (std::uint64_t key = 1; key <= 8; ++key) ASSERT_TRUE(rig.write_block(key, 10));
  const auto record = rig.index(2).find(test_key(5)).value().value();
  const std::vector<std::byte> hole(4096);
  rig.disk(2).corrupt(*rig.disk(2).find("/disk/slots"), record.slot * 4096, hole);
  rig.host(2).start_scrub(1, rig.now());
  rig.turns(500, milliseconds(10));
  const ScrubProgress progress = rig.host(2).status(rig.now()).scrub;
  EXPECT_EQ(progress.passes, 1U);
  EXPECT_EQ(progress.request, 1U);
  EXPECT_EQ(progress.total, 8U);
  EXPECT_EQ(progress.checked, 8U);
  EXPECT_EQ(progress.bad, 1U);
  EXPECT_EQ(rig.metrics().defects.with({"scrub", "magic"}).value(), 1);
  EXPECT_EQ(rig.shards_of(5), kMembers);
}

TEST(Group, ABlockWithTooFewShardsIsDroppedNotKeptAsAHalfTruth) {
  GroupRig rig({});
  ASSERT_TRUE(rig.write_block(1, 10));
  for (const std::size_t member : {0U, 1U, 2U}) rig.ask(member, DropShard{test_key(1), 0});
  const auto record = rig.index(3).find(test_key(1)).value().value();
  const std::vector<std::byte> hole(4096);
  rig.disk(3).corrupt(*rig.disk(3).find("/disk/slots"), record.slot * 4096, hole);
  rig.ask(3, ReadShard{test_key(1)});
  rig.turns(500, milliseconds(10));
  EXPECT_EQ(rig.index(3).find(test_key(1)).value(), std::nullopt);
  EXPECT_GE(rig.metrics().rebuilds.with({"impossible"}).value(), 1);
}

TEST(Group, APendingShardFollowsWhatItsPeersPublished) {
  GroupRig rig({});
  // Member 4 has written, and does not hear of the publication.
  ASSERT_TRUE(rig.write_block(1, 10));
  auto record = rig.index(4).find(test_key(1)).value().value();
  record.state = index::ShardState::kPending;
  const index::IndexChange back = index::PutShard{{test_key(1), record}};
  ASSERT_TRUE(rig.index(4).commit({&back, 1}, index::Durability::kSynced).ok());
  rig.stop(4);
  rig.start(4);
  rig.turns(20);
  EXPECT_EQ(rig.shards_of(1), kMembers - 1);
  rig.turn(seconds(61));
  rig.turns(200);
  EXPECT_EQ(rig.shards_of(1), kMembers);
  EXPECT_EQ(rig.metrics().pending.with({"publish"}).value(), 1);
}

TEST(Group, APendingShardThatNobodyPublishedIsDropped) {
  GroupRig rig({});
  const auto written = rig.ask(1, WriteShard{sealed_shard({.key = 7, .generation = 3})});
  ASSERT_TRUE(written && written->result == ShardResult::kOk);
  rig.turn(seconds(30));
  rig.turns(50);
  EXPECT_EQ(rig.host(1).target().pending().size(), 1U);
  rig.turn(seconds(31));
  rig.turns(200);
  EXPECT_EQ(rig.host(1).target().pending().size(), 0U);
  EXPECT_EQ(rig.index(1).find(test_key(7)).value(), std::nullopt);
  EXPECT_EQ(rig.metrics().pending.with({"drop"}).value(), 1);
}

}  // namespace
}  // namespace millrace::storage::node
