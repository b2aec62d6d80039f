#include "storage/fetch/fetch_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::storage::fetch {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint32_t kBlockBytes = 100;

BlockKey key_of(int value) {
  BlockKey key;
  key.bytes[0] = static_cast<std::uint8_t>(value);
  return key;
}

std::vector<BlockKey> keys_of(std::initializer_list<int> values) {
  std::vector<BlockKey> keys;
  keys.reserve(values.size());
  for (const int value : values) keys.push_back(key_of(value));
  return keys;
}

class FetchCoreTest : public ::testing::Test {
 protected:
  FetchCoreTest() { build({}, {.read_slots = 8, .write_slots = 2, .block_bytes = kBlockBytes}); }

  void build(const FetchLimits& limits, const ArenaCapacity& capacity) {
    core_.emplace(limits, capacity);
    send(SessionOpened{1});
    send(SessionOpened{2});
  }

  FetchActions send(FetchEvent event) { return last_ = core_->on_event(std::move(event), now_); }

  FetchActions fetch(RequestId id, std::vector<BlockKey> keys, std::int64_t priority = 0,
                     SessionId session = 1, milliseconds timeout = milliseconds(1000)) {
    return send(FetchBlocks{.session = session,
                            .request_id = id,
                            .keys = std::move(keys),
                            .block_bytes = kBlockBytes,
                            .priority = priority,
                            .deadline = now_ + timeout});
  }
  /// The read of a block that was started last.
  FetchActions finish(int key, FetchEnd end = FetchEnd::kComplete) {
    return send(ReadFinished{reads_.at(key), end});
  }

  /// Keys of the reads that the actions start; remembers their slots.
  std::vector<int> started(const FetchActions& actions) {
    std::vector<int> keys;
    for (const FetchAction& action : actions) {
      if (const auto* read = std::get_if<StartRead>(&action)) {
        keys.push_back(read->key.bytes[0]);
        reads_[read->key.bytes[0]] = read->ref;
      }
    }
    return keys;
  }
  template <typename Event>
  static std::vector<Event> told(const FetchActions& actions, SessionId session = 1) {
    std::vector<Event> events;
    for (const FetchAction& action : actions) {
      const auto* tell = std::get_if<Tell>(&action);
      if (tell == nullptr || tell->session != session) continue;
      if (const auto* event = std::get_if<Event>(&tell->event)) events.push_back(*event);
    }
    return events;
  }
  static std::vector<std::uint32_t> ready(const FetchActions& actions, SessionId session = 1) {
    const std::vector<BlockReady> events = told<BlockReady>(actions, session);
    std::vector<std::uint32_t> indices;
    indices.reserve(events.size());
    for (const BlockReady& event : events) {
      indices.push_back(event.index);
    }
    return indices;
  }
  static int retired(const FetchActions& actions) {
    int count = 0;
    for (const FetchAction& action : actions) count += std::holds_alternative<RetireSlot>(action);
    return count;
  }
  /// "complete 3", or nothing.
  static std::string end_of(const FetchActions& actions, SessionId session = 1) {
    const auto ends = told<FetchDone>(actions, session);
    if (ends.empty()) return "";
    return std::string(fetch_end_name(ends[0].end)) + " " + std::to_string(ends[0].ready_blocks);
  }

  std::optional<FetchCore> core_;
  TimePoint now_{std::chrono::hours(1)};
  FetchActions last_;
  std::map<int, SlotRef> reads_;
};

TEST_F(FetchCoreTest, BlocksAreToldInTheOrderOfThePrefix) {
  EXPECT_THAT(started(fetch(1, keys_of({10, 11, 12}))), ElementsAre(10, 11, 12));
  EXPECT_THAT(ready(finish(11)), ElementsAre());
  EXPECT_THAT(ready(finish(10)), ElementsAre(0, 1));
  EXPECT_EQ(end_of(finish(12)), "complete 3");
  EXPECT_THAT(ready(last_), ElementsAre(2));
}

TEST_F(FetchCoreTest, LowerPriorityNumbersGoFirstWhateverCameFirst) {
  build({.max_reads_in_flight = 1},
        {.read_slots = 8, .write_slots = 1, .block_bytes = kBlockBytes});
  EXPECT_THAT(started(fetch(1, keys_of({10}), 5)), ElementsAre(10));
  EXPECT_THAT(started(fetch(2, keys_of({20, 21}), 7)), ElementsAre());
  EXPECT_THAT(started(fetch(3, keys_of({30}), 6)), ElementsAre());
  EXPECT_THAT(started(finish(10)), ElementsAre(30));
  send(Reprioritise{1, 2, -1});
  fetch(4, keys_of({40}), 0);
  EXPECT_THAT(started(finish(30)), ElementsAre(20));
  EXPECT_THAT(started(finish(20)), ElementsAre(21));
  EXPECT_THAT(started(finish(21)), ElementsAre(40));
}

TEST_F(FetchCoreTest, AMissingBlockEndsTheFetchWhereItIs) {
  started(fetch(1, keys_of({10, 11, 12, 13})));
  finish(13);
  finish(10);
  EXPECT_EQ(end_of(finish(11, FetchEnd::kNotFound)), "not_found 1");
  EXPECT_EQ(retired(last_), 2);  // of 11 and 13
  // 12 is still on its way: its slot is given back when it has come.
  EXPECT_EQ(retired(finish(12)), 1);
  EXPECT_EQ(core_->counters().unwanted_reads, 1u);
  EXPECT_EQ(core_->counters().ready_slots, 1u);
}

TEST_F(FetchCoreTest, ABlockBeforeTheMissingOneIsWaitedFor) {
  started(fetch(1, keys_of({10, 11})));
  EXPECT_EQ(end_of(finish(11, FetchEnd::kNotFound)), "");
  EXPECT_EQ(end_of(finish(10)), "not_found 1");
}

TEST_F(FetchCoreTest, TheDeadlineEndsAFetchShort) {
  started(fetch(1, keys_of({10, 11}), 0, 1, milliseconds(50)));
  finish(10);
  EXPECT_EQ(core_->next_timer(), now_ + milliseconds(50));
  now_ += milliseconds(50);
  EXPECT_EQ(end_of(send(TimerDue{})), "deadline 1");
  EXPECT_EQ(end_of(fetch(2, keys_of({12}), 0, 1, milliseconds(0))), "deadline 0");
}

TEST_F(FetchCoreTest, TwoSessionsShareOneReadAndOneSlot) {
  EXPECT_THAT(started(fetch(1, keys_of({10, 11}), 0, 1)), ElementsAre(10, 11));
  EXPECT_THAT(started(fetch(1, keys_of({10, 11}), 0, 2)), ElementsAre());
  finish(10);
  EXPECT_THAT(ready(last_, 1), ElementsAre(0));
  EXPECT_THAT(ready(last_, 2), ElementsAre(0));
  finish(11);
  EXPECT_EQ(core_->counters().reads, 2u);
  EXPECT_EQ(core_->counters().ready_slots, 2u);
  EXPECT_EQ(core_->counters().leased_blocks, 4u);
  EXPECT_EQ(retired(send(ReleaseBlocks{1, 1, {0, 1}})), 0);
  EXPECT_EQ(retired(send(ReleaseBlocks{2, 1, {0}})), 1);
  EXPECT_EQ(retired(send(SessionEnded{2})), 1);
  EXPECT_EQ(core_->counters().ready_slots, 0u);
}

TEST_F(FetchCoreTest, ADeadlineOfTheOneWhoReadIsNotTheOthers) {
  started(fetch(1, keys_of({10}), 0, 1, milliseconds(20)));
  started(fetch(1, keys_of({10}), 0, 2, milliseconds(500)));
  now_ += milliseconds(20);
  send(TimerDue{});
  EXPECT_THAT(started(finish(10, FetchEnd::kDeadline)), ElementsAre(10));  // for the second
  EXPECT_EQ(end_of(finish(10), 2), "complete 1");
}

TEST_F(FetchCoreTest, AReadThatHadItsFullTimeIsNotTriedAgain) {
  build({.longest_read = milliseconds(100)},
        {.read_slots = 8, .write_slots = 1, .block_bytes = kBlockBytes});
  started(fetch(1, keys_of({10})));
  now_ += milliseconds(100);
  EXPECT_EQ(end_of(finish(10, FetchEnd::kDeadline)), "deadline 0");
}

TEST_F(FetchCoreTest, AFullArenaIsBusyAfterABoundedWait) {
  build({.slot_wait = milliseconds(100)},
        {.read_slots = 2, .write_slots = 1, .block_bytes = kBlockBytes});
  started(fetch(1, keys_of({10, 11})));
  finish(10);
  finish(11);
  fetch(2, keys_of({20}));
  fetch(3, keys_of({30}));
  EXPECT_EQ(core_->next_timer(), now_ + milliseconds(100));
  now_ += milliseconds(100);
  EXPECT_EQ(end_of(send(TimerDue{})), "busy 0");
  EXPECT_EQ(told<FetchDone>(last_)[0].request_id, 2u);
  // The next one of the queue has its own wait, in which a slot becomes free.
  now_ += milliseconds(50);
  EXPECT_THAT(started(send(ReleaseBlocks{1, 1, {1}})), ElementsAre(30));
  EXPECT_EQ(core_->counters().slot_waits, 2u);
}

TEST_F(FetchCoreTest, ALeaseEndsByItself) {
  build({.lease = milliseconds(300)},
        {.read_slots = 2, .write_slots = 1, .block_bytes = kBlockBytes});
  started(fetch(1, keys_of({10, 11})));
  finish(10);
  now_ += milliseconds(100);
  finish(11);
  now_ += milliseconds(200);
  EXPECT_EQ(core_->next_timer(), now_);
  EXPECT_EQ(retired(send(TimerDue{})), 1);
  now_ += milliseconds(100);
  EXPECT_EQ(retired(send(TimerDue{})), 1);
  EXPECT_EQ(core_->counters().leases_lost, 2u);
  EXPECT_EQ(core_->next_timer(), std::nullopt);
  // The fetch is gone, and its name is free.
  EXPECT_THAT(started(fetch(1, keys_of({10}))), ElementsAre(10));
}

TEST_F(FetchCoreTest, ACancelledFetchGivesEverythingBack) {
  started(fetch(1, keys_of({10, 11, 12})));
  finish(10);
  finish(12);
  EXPECT_EQ(end_of(send(CancelFetch{1, 1})), "cancelled 1");
  EXPECT_EQ(retired(last_), 2);
  EXPECT_EQ(retired(finish(11)), 1);
  EXPECT_TRUE(core_->is_idle());
  EXPECT_TRUE(send(CancelFetch{1, 1}).empty());
}

TEST_F(FetchCoreTest, WhatMakesNoSenseIsRefused) {
  EXPECT_EQ(end_of(fetch(1, {})), "invalid 0");
  EXPECT_EQ(end_of(send(FetchBlocks{.session = 1,
                                    .request_id = 1,
                                    .keys = keys_of({1}),
                                    .block_bytes = kBlockBytes + 1,
                                    .deadline = now_ + milliseconds(10)})),
            "invalid 0");
  fetch(7, keys_of({1}));
  fetch(7, keys_of({2}));
  ASSERT_EQ(last_.size(), 1u);
  EXPECT_THAT(std::get<RefuseSession>(last_[0]).reason, HasSubstr("fetch 7"));
}

TEST_F(FetchCoreTest, QueuesAreBounded) {
  build({.max_fetches_per_session = 2, .max_keys_per_fetch = 3, .max_keys = 5},
        {.read_slots = 8, .write_slots = 1, .block_bytes = kBlockBytes});
  EXPECT_EQ(end_of(fetch(1, keys_of({1, 2, 3, 4}))), "invalid 0");
  EXPECT_EQ(end_of(fetch(1, keys_of({1, 2, 3}))), "");
  EXPECT_EQ(end_of(fetch(2, keys_of({4, 5, 6}))), "busy 0");
  EXPECT_EQ(end_of(fetch(2, keys_of({4}))), "");
  EXPECT_EQ(end_of(fetch(3, keys_of({5}))), "busy 0");
}

TEST_F(FetchCoreTest, ABlockOfAnotherSizeIsNotShared) {
  started(fetch(1, keys_of({10})));
  EXPECT_EQ(end_of(send(FetchBlocks{.session = 2,
                                    .request_id = 1,
                                    .keys = keys_of({10}),
                                    .block_bytes = kBlockBytes - 1,
                                    .deadline = now_ + milliseconds(10)}),
                   2),
            "other_size 0");
}

TEST_F(FetchCoreTest, DrainingLetsWhatRunsGoOn) {
  started(fetch(1, keys_of({10})));
  send(BeginDrain{});
  EXPECT_EQ(end_of(fetch(2, keys_of({20}))), "stopping 0");
  EXPECT_TRUE(told<WriteSlots>(send(ReserveSlots{1, 3, 1}))[0].slots.empty());
  EXPECT_FALSE(core_->is_idle());
  EXPECT_EQ(end_of(finish(10)), "complete 1");
  EXPECT_TRUE(core_->is_idle());
}

TEST_F(FetchCoreTest, SealedBlocksAreStoredAndTheirSlotsFreed) {
  const auto slots = told<WriteSlots>(send(ReserveSlots{1, 5, 9}));
  ASSERT_EQ(slots.size(), 1u);
  ASSERT_EQ(slots[0].slots.size(), 2u);  // all there are
  EXPECT_TRUE(told<WriteSlots>(send(ReserveSlots{2, 6, 1}), 2)[0].slots.empty());
  const SlotRef ref = slots[0].slots[0];
  send(SealSlot{.session = 1, .ref = ref, .key = key_of(3), .block_bytes = kBlockBytes, .crc = 77});
  ASSERT_EQ(last_.size(), 1u);
  EXPECT_EQ(std::get<StartStore>(last_[0]).crc, 77u);
  EXPECT_FALSE(core_->is_idle());
  const auto stored = told<BlockStored>(send(StoreFinished{ref, StoreEnd::kAlreadyThere}));
  ASSERT_EQ(stored.size(), 1u);
  EXPECT_EQ(stored[0].end, StoreEnd::kAlreadyThere);
  EXPECT_EQ(told<WriteSlots>(send(ReserveSlots{2, 7, 5}), 2)[0].slots.size(), 1u);
}

TEST_F(FetchCoreTest, OnlyTheHolderOfAReservationSeals) {
  const SlotRef ref = told<WriteSlots>(send(ReserveSlots{1, 5, 1}))[0].slots[0];
  const SealSlot seal{.session = 2, .ref = ref, .key = key_of(3), .block_bytes = kBlockBytes};
  EXPECT_EQ(told<BlockStored>(send(seal), 2)[0].end, StoreEnd::kLeaseLost);
  SealSlot older = seal;
  older.session = 1;
  older.ref.generation -= 1;
  EXPECT_EQ(told<BlockStored>(send(older))[0].end, StoreEnd::kLeaseLost);
  SealSlot empty = seal;
  empty.session = 1;
  empty.block_bytes = 0;
  EXPECT_EQ(told<BlockStored>(send(empty))[0].end, StoreEnd::kInvalid);
}

TEST_F(FetchCoreTest, ReservationsEndByThemselvesAndWithTheirSession) {
  build({.lease = milliseconds(300)},
        {.read_slots = 2, .write_slots = 2, .block_bytes = kBlockBytes});
  const SlotRef first = told<WriteSlots>(send(ReserveSlots{1, 5, 1}))[0].slots[0];
  now_ += milliseconds(100);
  const SlotRef second = told<WriteSlots>(send(ReserveSlots{1, 5, 1}))[0].slots[0];
  send(SealSlot{.session = 1, .ref = second, .key = key_of(3), .block_bytes = kBlockBytes});
  now_ += milliseconds(200);
  EXPECT_EQ(retired(send(TimerDue{})), 1);
  EXPECT_EQ(core_->counters().leases_lost, 1u);
  EXPECT_EQ(told<BlockStored>(send(SealSlot{
                .session = 1, .ref = first, .key = key_of(4), .block_bytes = kBlockBytes}))[0]
                .end,
            StoreEnd::kLeaseLost);
  // What is being stored goes on when its session is gone; nobody is told.
  EXPECT_EQ(retired(send(SessionEnded{1})), 0);
  EXPECT_EQ(send(StoreFinished{second, StoreEnd::kStored}).size(), 1u);
  EXPECT_EQ(told<WriteSlots>(send(ReserveSlots{2, 1, 5}), 2)[0].slots.size(), 2u);
  EXPECT_EQ(retired(send(SessionEnded{2})), 2);
}

}  // namespace
}  // namespace millrace::storage::fetch
