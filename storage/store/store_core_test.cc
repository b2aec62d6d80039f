#include "storage/store/store_core.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "storage/store/store_rig.h"
#include "storage/store/stripe.h"

namespace millrace::storage::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t kBlockBytes = 5000;

BlockKey key_of(std::uint32_t number) {
  BlockKey key;
  std::mt19937 random(number + 1000);
  for (auto& byte : key.bytes) byte = static_cast<std::uint8_t>(random());
  return key;
}

std::vector<std::byte> block_of(std::uint32_t number, std::size_t bytes = kBlockBytes) {
  std::mt19937 random(number);
  std::vector<std::byte> block(bytes);
  for (std::byte& byte : block) byte = static_cast<std::byte>(random());
  return block;
}

std::string target(int index) { return "t" + std::to_string(index); }

/// One group of 10+2 with block 1 stored.
class StoreCoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const OperationId id = rig_.write(key_of(1), block_of(1));
    settle();
    ASSERT_EQ(rig_.write_outcome(id), WriteOutcome::kStored);
  }

  void settle() { rig_.run_for(seconds(30)); }

  const ReadResult& read(const BlockKey& key) {
    const OperationId id = rig_.read(key);
    settle();
    return rig_.read_result(id);
  }

  const StoreCounters& counters() const { return rig_.core().counters(); }

  StoreRig rig_{simulated_map(10, 2, 1, kBlockBytes), 7};
};

TEST_F(StoreCoreTest, ReadsWhatWasWritten) {
  const ReadResult& result = read(key_of(1));
  EXPECT_TRUE(result.is_hit());
  EXPECT_EQ(result.block, block_of(1));
  EXPECT_EQ(read(key_of(2)).miss, MissReason::kNotFound);
  EXPECT_EQ(counters().hits, 1U);
  EXPECT_EQ(counters().read_bytes, kBlockBytes);
  EXPECT_EQ(counters().read_bytes_in_flight, 0U);
  EXPECT_EQ(counters().write_bytes_in_flight, 0U);
}

TEST_F(StoreCoreTest, ReadsIntoTheCallersMemory) {
  std::vector<std::byte> landing(kBlockBytes);
  const OperationId id = rig_.read(key_of(1), StoreRig::kTimeout, landing);
  settle();
  EXPECT_TRUE(rig_.read_result(id).is_hit());
  EXPECT_EQ(landing, block_of(1));
  std::vector<std::byte> other(kBlockBytes - 1, std::byte{0x5a});
  const OperationId wrong = rig_.read(key_of(1), StoreRig::kTimeout, other);
  settle();
  EXPECT_EQ(rig_.read_result(wrong).miss, MissReason::kOtherSize);
  EXPECT_EQ(other, std::vector<std::byte>(kBlockBytes - 1, std::byte{0x5a}));
}

TEST_F(StoreCoreTest, BlocksOfEveryAwkwardSize) {
  std::uint32_t number = 100;
  for (const std::size_t bytes : {1U, 9U, 10U, 11U, 63U, 64U, 639U, 640U, 641U, 4991U, 5000U}) {
    ++number;
    const OperationId id = rig_.write(key_of(number), block_of(number, bytes));
    settle();
    ASSERT_EQ(rig_.write_outcome(id), WriteOutcome::kStored) << bytes;
    for (const int lost : {0, 5, 9}) {
      rig_.nodes().set_fault(target(lost), TargetFault::kBusy);
      rig_.nodes().set_fault(target((lost + 1) % 12), TargetFault::kBusy);
      EXPECT_EQ(read(key_of(number)).block, block_of(number, bytes)) << bytes;
      rig_.nodes().set_fault(target(lost), TargetFault::kNone);
      rig_.nodes().set_fault(target((lost + 1) % 12), TargetFault::kNone);
    }
  }
  for (const std::size_t bytes : {0U, 5001U}) {
    ++number;
    const OperationId id = rig_.write(key_of(number), block_of(number, bytes));
    EXPECT_EQ(rig_.write_outcome(id), WriteOutcome::kInvalid);
  }
}

TEST_F(StoreCoreTest, AllSixtySixTwoLossPatternsAreReadWhateverTheLossIs) {
  for (const TargetFault fault :
       {TargetFault::kUnavailable, TargetFault::kSilent, TargetFault::kFlipBit}) {
    for (int a = 0; a < 12; ++a) {
      for (int b = a + 1; b < 12; ++b) {
        rig_.nodes().set_fault(target(a), fault);
        rig_.nodes().set_fault(target(b), fault);
        const ReadResult& result = read(key_of(1));
        ASSERT_TRUE(result.is_hit()) << a << ", " << b << ": " << miss_reason_name(result.miss);
        ASSERT_EQ(result.block, block_of(1));
        rig_.nodes().set_fault(target(a), TargetFault::kNone);
        rig_.nodes().set_fault(target(b), TargetFault::kNone);
        settle();
      }
    }
  }
}

TEST_F(StoreCoreTest, ThreeLossesAreACleanMiss) {
  for (const TargetFault fault :
       {TargetFault::kUnavailable, TargetFault::kSilent, TargetFault::kFlipBit}) {
    for (const int lost : {1, 6, 11}) rig_.nodes().set_fault(target(lost), fault);
    const ReadResult& result = read(key_of(1));
    EXPECT_FALSE(result.is_hit());
    EXPECT_TRUE(result.block.empty());
    for (const int lost : {1, 6, 11}) rig_.nodes().set_fault(target(lost), TargetFault::kNone);
    settle();
    EXPECT_TRUE(read(key_of(1)).is_hit());
  }
}

TEST_F(StoreCoreTest, EveryKindOfDamageIsDetectedCountedAndReported) {
  struct Case {
    TargetFault fault;
    ShardDefect defect;
  };
  for (const Case& test : {Case{TargetFault::kFlipBit, ShardDefect::kChecksum},
                           {TargetFault::kTruncate, ShardDefect::kShort},
                           {TargetFault::kZeros, ShardDefect::kMagic},
                           {TargetFault::kOtherKey, ShardDefect::kKey},
                           {TargetFault::kOtherIndex, ShardDefect::kIndex},
                           {TargetFault::kSaysBad, ShardDefect::kChecksum}}) {
    const auto index = static_cast<std::size_t>(test.defect);
    const std::uint64_t before = counters().shard_defects[index];
    const std::uint64_t repairs = rig_.nodes().repairs_of(target(4));
    rig_.nodes().set_fault(target(4), test.fault);
    // The member is left out of one read in twelve.
    for (int i = 0; i < 2; ++i) ASSERT_EQ(read(key_of(1)).block, block_of(1));
    EXPECT_GT(counters().shard_defects[index], before) << shard_defect_name(test.defect);
    EXPECT_GT(rig_.nodes().repairs_of(target(4)), repairs) << shard_defect_name(test.defect);
    rig_.nodes().set_fault(target(4), TargetFault::kNone);
  }
}

// A shard that is whole, but whose block has another size than the others say.
TEST_F(StoreCoreTest, ShardsOfOneGenerationMustAgreeOnTheSize) {
  rig_.nodes().set_fault(target(0), TargetFault::kOtherLayout);
  for (int i = 0; i < 50; ++i) {
    // When the liar answers first, the others contradict it, and nothing is believed.
    const ReadResult& result = read(key_of(1));
    ASSERT_TRUE(result.block == block_of(1) || result.miss == MissReason::kTooFewShards);
  }
}

TEST_F(StoreCoreTest, GenerationsAreNeverMixed) {
  // Another write of the block, of which only some shards are left.
  StoreRig other(simulated_map(10, 2, 1, kBlockBytes), 8);
  other.write(key_of(1), block_of(55));
  other.run_for(seconds(5));
  for (int count = 1; count <= 12; ++count) {
    const int index = count - 1;
    rig_.nodes().plant(target(index), key_of(1), *other.nodes().find(target(index), key_of(1)));
    const ReadResult& result = read(key_of(1));
    if (count <= 2) {
      EXPECT_EQ(result.block, block_of(1)) << count;
    } else if (count >= 10) {
      EXPECT_EQ(result.block, block_of(55)) << count;
    } else {
      EXPECT_EQ(result.miss, MissReason::kTooFewShards) << count;
    }
  }
}

TEST_F(StoreCoreTest, AFrozenNodeGoesOnProbationAndHedgesStayRare) {
  for (std::uint32_t i = 0; i < 200; ++i) read(key_of(1));
  const std::uint64_t before = counters().hedged_reads;
  rig_.nodes().set_fault(target(3), TargetFault::kSilent);
  rig_.nodes().set_fault(target(8), TargetFault::kSilent);
  constexpr int kReads = 2000;
  for (int i = 0; i < kReads; ++i) {
    const OperationId id = rig_.read(key_of(1));
    rig_.run_for(milliseconds(10));
    ASSERT_TRUE(rig_.has_finished(id) || i < 20);
  }
  EXPECT_LE(counters().hedged_reads - before, kReads / 20);
  EXPECT_EQ(counters().nodes_on_probation, 2U);
  EXPECT_GT(counters().probes, 0U);
  EXPECT_EQ(counters().hits, 200U + kReads);
  rig_.nodes().set_fault(target(3), TargetFault::kNone);
  rig_.nodes().set_fault(target(8), TargetFault::kNone);
  for (int i = 0; i < 100; ++i) read(key_of(1));
  EXPECT_EQ(counters().nodes_on_probation, 0U) << "probes have brought them back";
  EXPECT_EQ(counters().read_bytes_in_flight, 0U);
  EXPECT_EQ(counters().late_bytes_in_flight, 0U);
}

TEST_F(StoreCoreTest, EachMemberIsLeftOutAsOftenAsAnyOther) {
  std::array<std::uint64_t, 12> before{};
  for (int i = 0; i < 12; ++i)
    before[static_cast<std::size_t>(i)] = rig_.nodes().requests_to(target(i));
  for (int i = 0; i < 120; ++i) read(key_of(1));
  for (int i = 0; i < 12; ++i)
    EXPECT_EQ(rig_.nodes().requests_to(target(i)) - before[static_cast<std::size_t>(i)], 110U);
}

TEST_F(StoreCoreTest, LateAnswersCountAgainstTheWindow) {
  rig_.nodes().set_fault(target(3), TargetFault::kSilent);
  for (int i = 0; i < 2; ++i) read(key_of(1));
  const std::size_t shard = sealed_shard_bytes(kBlockBytes, 10);
  EXPECT_GE(counters().late_bytes_in_flight, shard);
  EXPECT_EQ(counters().late_bytes_in_flight, counters().read_bytes_in_flight);
  rig_.nodes().set_fault(target(3), TargetFault::kNone);
  settle();
  EXPECT_EQ(counters().read_bytes_in_flight, 0U);
  EXPECT_EQ(counters().late_bytes_in_flight, 0U);
}

TEST_F(StoreCoreTest, AStoppedCoreFinishesEverythingAndTakesLateAnswers) {
  for (int i = 0; i < 12; ++i) rig_.nodes().set_fault(target(i), TargetFault::kSilent);
  const OperationId read_id = rig_.read(key_of(1));
  const OperationId write_id = rig_.write(key_of(2), block_of(2));
  const OperationId query_id = rig_.query({key_of(1)});
  rig_.run_for(milliseconds(5));
  rig_.event(StopStore{});
  EXPECT_EQ(rig_.read_result(read_id).miss, MissReason::kShutdown);
  EXPECT_EQ(rig_.write_outcome(write_id), WriteOutcome::kShutdown);
  EXPECT_EQ(rig_.query_result(query_id), std::vector<bool>{false});
  for (int i = 0; i < 12; ++i) rig_.nodes().set_fault(target(i), TargetFault::kNone);
  settle();
  EXPECT_EQ(counters().read_bytes_in_flight, 0U);
  EXPECT_EQ(counters().write_bytes_in_flight, 0U);
  EXPECT_EQ(rig_.nodes().find(target(0), key_of(2)), nullptr) << "late shards are dropped";
  EXPECT_EQ(rig_.read_result(rig_.read(key_of(1))).miss, MissReason::kShutdown);
}

TEST(StoreCore, TheWindowsAreBounded) {
  StoreSettings settings;
  settings.read_window_bytes = std::size_t{3} * 11 * sealed_shard_bytes(kBlockBytes, 10);
  settings.max_waiting_reads = 2;
  settings.write_window_bytes = 1;
  StoreRig rig(simulated_map(10, 2, 1, kBlockBytes), 1, settings);
  const OperationId first = rig.write(key_of(1), block_of(1));
  const OperationId second = rig.write(key_of(2), block_of(2));
  EXPECT_EQ(rig.write_outcome(second), WriteOutcome::kBusy);
  rig.run_for(seconds(1));
  EXPECT_EQ(rig.write_outcome(first), WriteOutcome::kStored);

  std::vector<OperationId> reads;
  reads.reserve(6);
  for (int i = 0; i < 6; ++i) reads.push_back(rig.read(key_of(1)));
  EXPECT_EQ(rig.core().counters().waiting_reads, 2U);
  EXPECT_EQ(rig.read_result(reads[5]).miss, MissReason::kBusy);
  rig.run_for(seconds(1));
  for (int i = 0; i < 5; ++i)
    EXPECT_TRUE(rig.read_result(reads[static_cast<std::size_t>(i)]).is_hit());
}

TEST(StoreCore, AReadThatWaitsForRoomKeepsItsDeadline) {
  StoreSettings settings;
  settings.read_window_bytes = 1;
  StoreRig rig(simulated_map(10, 2, 1, kBlockBytes), 1, settings);
  rig.write(key_of(1), block_of(1));
  rig.run_for(seconds(1));
  for (int i = 0; i < 12; ++i) rig.nodes().set_fault(target(i), TargetFault::kSilent);
  const OperationId first = rig.read(key_of(1), seconds(10));
  const OperationId second = rig.read(key_of(1), milliseconds(20));
  const TimePoint start = rig.now();
  rig.run_for(seconds(1));
  EXPECT_FALSE(rig.has_finished(first));
  EXPECT_EQ(rig.read_result(second).miss, MissReason::kBusy);
  EXPECT_EQ(rig.finished_at(second), start + milliseconds(20));
  EXPECT_EQ(rig.core().counters().waiting_reads, 0U);
}

// Quorum is all who are left: the first refusal alone makes it impossible.
TEST(StoreCore, AStaleMapOfADegradedGroupIsRenewedToo) {
  const auto degraded = [](std::uint64_t epoch) {
    auto map = std::make_shared<StorageMap>(*simulated_map(10, 2, 1, kBlockBytes, epoch));
    map->groups[0].members[0].state = map->groups[0].members[1].state = MemberState::kDown;
    return map;
  };
  StoreRig rig(degraded(1), 3);
  rig.nodes().set_map(degraded(2));
  const OperationId write = rig.write(key_of(2), block_of(2));
  rig.run_for(milliseconds(50));
  rig.event(MapChanged{degraded(2)});
  rig.run_for(seconds(1));
  EXPECT_EQ(rig.write_outcome(write), WriteOutcome::kStored);
  const OperationId read = rig.read(key_of(2));
  rig.run_for(seconds(1));
  EXPECT_EQ(rig.read_result(read).block, block_of(2));
}

TEST(StoreCore, WithoutAMapEverythingIsAMiss) {
  StoreCore core({}, 1);
  const TimePoint now{seconds(1)};
  StoreActions actions = core.on_event(StartRead{.id = 1, .key = key_of(1), .landing = {}}, now);
  ASSERT_EQ(actions.reads.size(), 1U);
  EXPECT_EQ(actions.reads[0].result.miss, MissReason::kNoMap);
  actions = core.on_event(StartWrite{.id = 2, .key = key_of(1), .block = block_of(1)}, now);
  ASSERT_EQ(actions.writes.size(), 1U);
  EXPECT_EQ(actions.writes[0].outcome, WriteOutcome::kNoMap);
  actions = core.on_event(StartQuery{.id = 3, .keys = {key_of(1)}}, now);
  ASSERT_EQ(actions.queries.size(), 1U);
  EXPECT_EQ(actions.queries[0].present, std::vector<bool>{false});
}

TEST(StoreCore, AStaleMapIsRenewedAndTheOperationStartsAgain) {
  const auto old_map = simulated_map(10, 2, 1, kBlockBytes, 1);
  const auto new_map = simulated_map(10, 2, 1, kBlockBytes, 2);
  StoreRig rig(old_map, 3);
  rig.write(key_of(1), block_of(1));
  rig.run_for(seconds(1));
  rig.nodes().set_map(new_map);
  const OperationId read = rig.read(key_of(1));
  const OperationId write = rig.write(key_of(2), block_of(2));
  const OperationId doomed = rig.read(key_of(1), milliseconds(20));
  rig.run_for(milliseconds(100));
  EXPECT_FALSE(rig.has_finished(read));
  EXPECT_EQ(rig.map_requests(), 1U);
  EXPECT_EQ(rig.read_result(doomed).miss, MissReason::kNoMap) << "it was in no time";
  rig.event(MapChanged{new_map});
  rig.run_for(seconds(1));
  EXPECT_TRUE(rig.read_result(read).is_hit());
  EXPECT_EQ(rig.write_outcome(write), WriteOutcome::kStored);
  EXPECT_EQ(rig.core().counters().write_bytes_in_flight, 0U);
}

// The client hears of the new map after it has sent and before it is refused: no further map comes
// that would wake what waits for one.
TEST(StoreCore, ARefusalThatIsBehindTheMapAtHandStartsAgainAtOnce) {
  const auto new_map = simulated_map(10, 2, 1, kBlockBytes, 2);
  StoreRig rig(simulated_map(10, 2, 1, kBlockBytes, 1), 3);
  rig.write(key_of(1), block_of(1));
  rig.run_for(seconds(1));
  rig.nodes().set_map(new_map);
  const OperationId read = rig.read(key_of(1));
  const OperationId write = rig.write(key_of(2), block_of(2));
  rig.event(MapChanged{new_map});
  rig.run_for(milliseconds(200));
  EXPECT_TRUE(rig.read_result(read).is_hit());
  EXPECT_EQ(rig.write_outcome(write), WriteOutcome::kStored);
}

// Nodes that die together give a map each.
TEST(StoreCore, MapsInQuickSuccessionAreAllFollowed) {
  StoreRig rig(simulated_map(10, 2, 1, kBlockBytes, 1), 3);
  rig.write(key_of(1), block_of(1));
  rig.run_for(seconds(1));
  rig.nodes().set_map(simulated_map(10, 2, 1, kBlockBytes, 2));
  const OperationId read = rig.read(key_of(1));
  const OperationId write = rig.write(key_of(2), block_of(2));
  for (std::uint64_t epoch = 2; epoch < 6; ++epoch) {
    rig.run_for(milliseconds(20));  // refused by those who know a newer one
    rig.nodes().set_map(simulated_map(10, 2, 1, kBlockBytes, epoch + 1));
    rig.event(MapChanged{simulated_map(10, 2, 1, kBlockBytes, epoch)});
  }
  rig.run_for(milliseconds(20));
  rig.event(MapChanged{simulated_map(10, 2, 1, kBlockBytes, 6)});
  rig.run_for(seconds(1));
  EXPECT_TRUE(rig.read_result(read).is_hit());
  EXPECT_EQ(rig.write_outcome(write), WriteOutcome::kStored);
}

TEST(StoreCore, TwoClientsWriteOneBlockAndOneWins) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    const auto map = simulated_map(3, 2, 1, kBlockBytes);
    StoreRig rig(map, seed);
    // Two writes of one core are two writers: each has a generation of its own.
    const OperationId a = rig.write(key_of(1), block_of(1));
    const OperationId b = rig.write(key_of(1), block_of(2));
    rig.run_for(seconds(5));
    const bool a_won = rig.write_outcome(a) == WriteOutcome::kStored;
    const bool b_won = rig.write_outcome(b) == WriteOutcome::kStored;
    ASSERT_NE(a_won, b_won) << "seed " << seed;
    const OperationId read = rig.read(key_of(1));
    rig.run_for(seconds(5));
    ASSERT_EQ(rig.read_result(read).block, block_of(a_won ? 1 : 2)) << "seed " << seed;
  }
}

TEST(StoreCore, AQueryAsksOneMemberAndAnotherWhenThatFails) {
  const auto map = simulated_map(4, 2, 5, kBlockBytes);
  StoreRig rig(map, 4);
  std::vector<BlockKey> keys;
  for (std::uint32_t i = 0; i < 40; ++i) keys.push_back(key_of(i));
  for (std::uint32_t i = 0; i < 40; i += 2) rig.write(keys[i], block_of(i));
  rig.run_for(seconds(1));
  const auto expect_right = [&] {
    const OperationId query = rig.query(keys);
    rig.run_for(seconds(3));
    for (std::size_t i = 0; i < keys.size(); ++i)
      EXPECT_EQ(rig.query_result(query)[i], i % 2 == 0) << i;
  };
  std::uint64_t before = 0;
  for (int i = 0; i < 30; ++i) before += rig.nodes().requests_to(target(i));
  expect_right();
  std::uint64_t after = 0;
  for (int i = 0; i < 30; ++i) after += rig.nodes().requests_to(target(i));
  EXPECT_EQ(after - before, 5U) << "one request for each group";
  for (const TargetFault fault :
       {TargetFault::kUnavailable, TargetFault::kSilent, TargetFault::kBusy}) {
    for (int g = 0; g < 5; ++g) rig.nodes().set_fault(target(6 * g), fault);
    expect_right();
  }
}

TEST(StoreCore, ATouchGoesToEveryMemberAndOnceAMinute) {
  StoreRig rig(simulated_map(4, 2, 1, kBlockBytes), 4);
  const auto touch = [&](TtlClass ttl) {
    rig.event(TouchBlocks{{key_of(1), key_of(2)}, ttl});
    rig.run_for(seconds(1));
  };
  touch(TtlClass::kAgent);
  touch(TtlClass::kAgent);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(rig.nodes().touches_of(target(i)), 2U);
  touch(TtlClass::kChatbot);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(rig.nodes().touches_of(target(i)), 4U) << "a longer life";
  rig.run_for(seconds(60));
  touch(TtlClass::kAgent);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(rig.nodes().touches_of(target(i)), 6U);
  EXPECT_EQ(rig.nodes().requests_to(target(0)), 3U);
}

/// Reads, writes and queries while faults come and go. Whatever happens: a block that is read is
/// the one that was written, everything finishes once and in time, and nothing is left over.
void run_chaos(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  StoreRig rig(simulated_map(4, 2, 2, kBlockBytes), seed);
  rig.longest_way = std::chrono::microseconds(100 + random() % 20000);
  std::map<OperationId, std::uint32_t> reads;
  std::map<OperationId, TimePoint> deadlines;
  for (int step = 0; step < 120; ++step) {
    const auto number = static_cast<std::uint32_t>(random() % 20);
    const milliseconds timeout(1 + random() % 300);
    OperationId id = 0;
    switch (random() % 4) {
      case 0:
        // Two writers may have different bytes for one key: here, by whether the number is odd.
        id = rig.write(key_of(number), block_of(number + (random() % 2 == 0 ? 0 : 1000)), timeout);
        break;
      case 1:
        id = rig.query({key_of(number), key_of(number + 1)}, timeout);
        break;
      case 2:
        id = rig.read(key_of(number), timeout);
        reads[id] = number;
        break;
      default: {
        const auto fault = static_cast<TargetFault>(random() % 12);
        rig.nodes().set_fault(target(static_cast<int>(random() % 12)),
                              random() % 2 == 0 ? TargetFault::kNone : fault);
      }
    }
    if (id != 0) deadlines[id] = rig.now() + timeout;
    rig.run_for(milliseconds(random() % 40));
  }
  for (int i = 0; i < 12; ++i) rig.nodes().set_fault(target(i), TargetFault::kNone);
  rig.run_for(seconds(60));
  for (const auto& [id, deadline] : deadlines) {
    ASSERT_TRUE(rig.has_finished(id));
    ASSERT_LE(rig.finished_at(id), deadline + milliseconds(1));
  }
  for (const auto& [id, number] : reads) {
    const ReadResult& result = rig.read_result(id);
    if (!result.is_hit()) continue;
    ASSERT_TRUE(result.block == block_of(number) || result.block == block_of(number + 1000));
  }
  const StoreCounters& counters = rig.core().counters();
  ASSERT_EQ(counters.read_bytes_in_flight, 0U);
  ASSERT_EQ(counters.late_bytes_in_flight, 0U);
  ASSERT_EQ(counters.write_bytes_in_flight, 0U);
  ASSERT_EQ(counters.waiting_reads, 0U);
  ASSERT_EQ(counters.hits +
                std::accumulate(counters.misses.begin(), counters.misses.end(), std::uint64_t{0}),
            counters.reads);
}

TEST(StoreCore, UnderFaultsNoWrongByteIsReadAndNothingIsLeftOver) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    run_chaos(seed);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace millrace::storage::store
