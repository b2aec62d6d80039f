#include "storage/fetch/window_core.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "common/str_cat.h"
#include "storage/ec/crc32c.h"

namespace millrace::storage::fetch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using swa::WindowMiss;

constexpr std::uint32_t kBytes = 64;

BlockKey key_of(unsigned number) {
  BlockKey key;
  key.bytes[0] = static_cast<std::uint8_t>(number);
  return key;
}

std::vector<std::byte> window_of(unsigned number, std::size_t bytes = kBytes) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(number + 1));
}

PutWindow put_of(SessionId session, RequestId id, unsigned number) {
  std::vector<std::byte> window = window_of(number);
  const std::uint32_t crc = ec::crc32c(window);
  return {session, id, key_of(number), std::move(window), crc};
}

TimePoint at(std::chrono::nanoseconds time) { return TimePoint(time); }

template <typename Wanted, typename Actions>
std::vector<Wanted> all_of(const Actions& actions) {
  std::vector<Wanted> found;
  for (const auto& action : actions) {
    if (const auto* wanted = std::get_if<Wanted>(&action)) found.push_back(*wanted);
  }
  return found;
}

/// What a session was told, in order.
template <typename Wanted>
std::vector<Wanted> told(const WindowActions& actions) {
  std::vector<Wanted> found;
  for (const Tell& tell : all_of<Tell>(actions)) {
    if (const auto* wanted = std::get_if<Wanted>(&tell.event)) found.push_back(*wanted);
  }
  return found;
}

WindowMiss only_miss(const WindowActions& actions) {
  const auto misses = told<WindowMissed>(actions);
  EXPECT_EQ(misses.size(), 1u);
  EXPECT_TRUE(told<WindowReady>(actions).empty());
  return misses.empty() ? WindowMiss::kBusy : misses[0].reason;
}

class WindowCoreTest : public ::testing::Test {
 protected:
  static WindowLimits limits() {
    return {.pool = {.slot_count = 2}, .window_bytes = kBytes, .max_peer_reads = 2};
  }
  static WindowOwner owner() { return {.host_id = "here", .address = "here:1", .incarnation = 7}; }

  swa::WindowLocation put(unsigned number, TimePoint now) {
    const auto stored = told<WindowStored>(core_.on_event(put_of(1, 1, number), now));
    EXPECT_TRUE(stored.size() == 1 && stored[0].at);
    return stored.at(0).at.value();
  }
  WindowActions get(RequestId id, const swa::WindowLocation& from, unsigned number, TimePoint now) {
    return core_.on_event(GetWindow{1, id, from, key_of(number), now + seconds(1)}, now);
  }
  static swa::WindowLocation elsewhere() {
    return {.host_id = "there",
            .address = "there:1",
            .incarnation = 3,
            .slot = 5,
            .generation = 9,
            .bytes = kBytes};
  }

  WindowCore core_{limits(), owner()};
};

TEST_F(WindowCoreTest, AWindowIsCheckedThenPutThenFound) {
  const WindowActions actions = core_.on_event(put_of(1, 4, 1), at(seconds(1)));
  const auto fills = all_of<FillWindow>(actions);
  ASSERT_EQ(fills.size(), 1u);
  EXPECT_EQ(fills[0].window, window_of(1));
  const auto stored = told<WindowStored>(actions);
  ASSERT_EQ(stored.size(), 1u);
  EXPECT_EQ(stored[0].request_id, 4u);
  const swa::WindowLocation expected{.host_id = "here",
                                     .address = "here:1",
                                     .incarnation = 7,
                                     .slot = fills[0].ref.slot,
                                     .generation = fills[0].ref.generation,
                                     .bytes = kBytes};
  EXPECT_EQ(stored[0].at, expected);
  const auto ready = told<WindowReady>(get(4, expected, 1, at(seconds(2))));
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].ref, fills[0].ref);
  EXPECT_EQ(core_.counters().local_hits, 1u);
  // Again: it is there, and not copied twice.
  const WindowActions again = core_.on_event(put_of(1, 5, 1), at(seconds(3)));
  EXPECT_TRUE(all_of<FillWindow>(again).empty());
  EXPECT_EQ(told<WindowStored>(again).at(0).at, expected);
}

TEST_F(WindowCoreTest, WhatIsNotWhatItsWriterAnnouncedIsNotKept) {
  PutWindow put = put_of(1, 1, 1);
  ++put.crc;
  EXPECT_EQ(told<WindowStored>(core_.on_event(std::move(put), at(seconds(1)))).at(0).at,
            std::nullopt);
  put = put_of(1, 2, 1);
  put.window.resize(kBytes + 1);
  EXPECT_EQ(told<WindowStored>(core_.on_event(std::move(put), at(seconds(1)))).at(0).at,
            std::nullopt);
  const WindowCounters counters = core_.counters();
  EXPECT_EQ(counters.puts[static_cast<std::size_t>(WindowPutEnd::kBadChecksum)], 1u);
  EXPECT_EQ(counters.puts[static_cast<std::size_t>(WindowPutEnd::kInvalid)], 1u);
  EXPECT_EQ(counters.pool.used_slots, 0u);
}

TEST_F(WindowCoreTest, SaysWhyAWindowIsNotHere) {
  const TimePoint now = at(seconds(1));
  swa::WindowLocation from = put(1, now);
  EXPECT_EQ(only_miss(get(1, from, 2, now)), WindowMiss::kCorrupt);
  from.generation += 1;
  EXPECT_EQ(only_miss(get(1, from, 2, now)), WindowMiss::kRecycled);
  from.incarnation += 1;
  EXPECT_EQ(only_miss(get(1, from, 2, now)), WindowMiss::kOtherOwner);
  from.bytes = 3;
  EXPECT_EQ(only_miss(get(1, from, 1, now)), WindowMiss::kCorrupt);
  from = put(1, now);
  EXPECT_EQ(only_miss(get(1, from, 1, at(seconds(181)))), WindowMiss::kExpired);
  from = elsewhere();
  from.address.clear();
  EXPECT_EQ(only_miss(get(1, from, 1, at(seconds(181)))), WindowMiss::kUnreachable);
  from = elsewhere();
  from.bytes = kBytes + 1;
  EXPECT_EQ(only_miss(get(1, from, 1, at(seconds(181)))), WindowMiss::kCorrupt);
  const GetWindow late{1, 1, elsewhere(), key_of(1), at(seconds(181))};
  EXPECT_EQ(only_miss(core_.on_event(late, at(seconds(181)))), WindowMiss::kDeadline);

  WindowCore without({.pool = {.slot_count = 0}}, owner());
  EXPECT_EQ(only_miss(without.on_event(late, now)), WindowMiss::kNoPool);
  EXPECT_EQ(told<WindowStored>(without.on_event(put_of(1, 1, 1), now)).at(0).at, std::nullopt);
}

TEST_F(WindowCoreTest, AWindowOfAnotherMachineBecomesACopyHere) {
  const TimePoint now = at(seconds(1));
  const auto reads = all_of<StartPeerRead>(get(1, elsewhere(), 1, now));
  ASSERT_EQ(reads.size(), 1u);
  EXPECT_EQ(reads[0].from, elsewhere());
  EXPECT_EQ(reads[0].deadline, now + seconds(1));
  EXPECT_FALSE(core_.is_idle());
  const WindowActions actions =
      core_.on_event(PeerReadFinished{reads[0].serial, {std::nullopt, window_of(1)}}, now);
  EXPECT_EQ(all_of<FillWindow>(actions).at(0).window, window_of(1));
  EXPECT_EQ(told<WindowReady>(actions).at(0).ref, all_of<FillWindow>(actions).at(0).ref);
  // The next who asks finds the copy.
  EXPECT_EQ(told<WindowReady>(get(2, elsewhere(), 1, now)).size(), 1u);
  EXPECT_EQ(core_.counters().remote_hits, 1u);
  EXPECT_EQ(core_.counters().local_hits, 1u);
  EXPECT_TRUE(core_.is_idle());
}

TEST_F(WindowCoreTest, ReadsFromOtherMachinesAreBounded) {
  const TimePoint now = at(seconds(1));
  const auto first = all_of<StartPeerRead>(get(1, elsewhere(), 1, now));
  EXPECT_EQ(all_of<StartPeerRead>(get(2, elsewhere(), 2, now)).size(), 1u);
  EXPECT_EQ(only_miss(get(3, elsewhere(), 3, now)), WindowMiss::kBusy);
  EXPECT_EQ(only_miss(core_.on_event(
                PeerReadFinished{first[0].serial, {WindowMiss::kUnreachable, {}}}, now)),
            WindowMiss::kUnreachable);
  EXPECT_EQ(all_of<StartPeerRead>(get(3, elsewhere(), 3, now)).size(), 1u);
  core_.begin_drain();
  EXPECT_EQ(only_miss(get(4, elsewhere(), 4, now)), WindowMiss::kBusy);
}

TEST_F(WindowCoreTest, AGetThatIsTakenBackIsMissedOnceAndItsBytesAreDropped) {
  const TimePoint now = at(seconds(1));
  const auto reads = all_of<StartPeerRead>(get(1, elsewhere(), 1, now));
  EXPECT_EQ(only_miss(core_.on_event(ReleaseWindow{1, 1}, now)), WindowMiss::kCancelled);
  EXPECT_TRUE(core_.on_event(ReleaseWindow{1, 1}, now).empty());
  EXPECT_TRUE(
      core_.on_event(PeerReadFinished{reads[0].serial, {std::nullopt, window_of(1)}}, now).empty());
  EXPECT_EQ(core_.counters().pool.used_slots, 0u);
}

TEST_F(WindowCoreTest, TwoGetsUnderOneNumberEndTheSession) {
  const auto from = put(1, at(seconds(1)));
  get(1, from, 1, at(seconds(1)));
  EXPECT_EQ(all_of<RefuseSession>(get(1, from, 1, at(seconds(1)))).size(), 1u);
  core_.on_event(ReleaseWindow{1, 1}, at(seconds(1)));
  EXPECT_EQ(told<WindowReady>(get(1, from, 1, at(seconds(1)))).size(), 1u);
}

TEST_F(WindowCoreTest, ASessionThatEndsGivesItsWindowsBack) {
  const TimePoint now = at(seconds(1));
  get(1, put(1, now), 1, now);
  get(2, put(2, now), 2, now);
  EXPECT_EQ(told<WindowStored>(core_.on_event(put_of(2, 1, 3), now)).at(0).at, std::nullopt);
  core_.end_session(1, now);
  EXPECT_NE(told<WindowStored>(core_.on_event(put_of(2, 1, 3), now)).at(0).at, std::nullopt);
}

/// Random engines and machines: each get is answered once, what is filled is what was put or read,
/// and a slot that an engine holds keeps its window.
void run_random_engines(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  WindowLimits limits{.pool = {.slot_count = static_cast<std::uint32_t>(1 + below(4)),
                               .ttl = milliseconds(400),
                               .copy_ttl = milliseconds(50),
                               .lease = seconds(1000)},
                      .window_bytes = kBytes,
                      .max_gets_per_session = 3,
                      .max_peer_reads = 2};
  WindowCore core(limits, {.host_id = "here", .address = "here:1", .incarnation = 7});
  using GetId = std::pair<SessionId, RequestId>;
  std::set<GetId> waiting;
  std::map<GetId, SlotRef> held;
  std::map<std::uint64_t, BlockKey> reads;
  std::map<GetId, BlockKey> asked;
  std::map<std::uint32_t, FillWindow> slots;
  const auto check = [&](const WindowActions& actions) {
    for (const WindowAction& action : actions) {
      if (const auto* fill = std::get_if<FillWindow>(&action)) {
        ASSERT_EQ(fill->window, window_of(fill->key.bytes[0]));
        for (const auto& [id, ref] : held) ASSERT_NE(ref.slot, fill->ref.slot) << "leased slot";
        if (slots.contains(fill->ref.slot)) {
          ASSERT_GT(fill->ref.generation, slots.at(fill->ref.slot).ref.generation);
        }
        slots[fill->ref.slot] = *fill;
      } else if (const auto* retire = std::get_if<RetireWindow>(&action)) {
        for (const auto& [id, ref] : held) ASSERT_NE(ref.slot, retire->ref.slot);
        ASSERT_EQ(slots.at(retire->ref.slot).ref, retire->ref);
      } else if (const auto* read = std::get_if<StartPeerRead>(&action)) {
        reads[read->serial] = read->key;
        ASSERT_LE(reads.size(), limits.max_peer_reads);
      } else if (const auto* tell = std::get_if<Tell>(&action)) {
        if (const auto* ready = std::get_if<WindowReady>(&tell->event)) {
          const GetId id{tell->session, ready->request_id};
          ASSERT_EQ(waiting.erase(id), 1u);
          ASSERT_EQ(slots.at(ready->ref.slot).ref, ready->ref);
          ASSERT_EQ(slots.at(ready->ref.slot).key, asked.at(id));
          held[id] = ready->ref;
        } else if (const auto* missed = std::get_if<WindowMissed>(&tell->event)) {
          ASSERT_EQ(waiting.erase({tell->session, missed->request_id}), 1u);
        }
      }
    }
  };
  std::int64_t now_ms = 1000;
  for (int step = 0; step < 300; ++step) {
    now_ms += static_cast<std::int64_t>(below(below(20) == 0 ? 500 : 20));
    const TimePoint now = at(milliseconds(now_ms));
    const GetId id{1 + below(2), below(6)};
    const auto number = static_cast<unsigned>(below(5));
    switch (below(6)) {
      case 0:
        check(core.on_event(put_of(id.first, id.second, number), now));
        break;
      case 1:
        if (waiting.contains(id) || held.contains(id)) break;
        waiting.insert(id);
        asked[id] = key_of(number);
        check(core.on_event(GetWindow{id.first,
                                      id.second,
                                      {.host_id = below(2) == 0 ? "here" : "there",
                                       .address = "there:1",
                                       .incarnation = 7,
                                       .slot = 0,
                                       .generation = 1,
                                       .bytes = kBytes},
                                      key_of(number),
                                      now + seconds(1)},
                            now));
        break;
      case 2:
        held.erase(id);
        check(core.on_event(ReleaseWindow{id.first, id.second}, now));
        ASSERT_FALSE(waiting.contains(id));
        break;
      case 3:
        if (!reads.empty()) {
          const auto read = reads.extract(reads.begin());
          PeerWindow result{.miss = {}, .window = window_of(read.mapped().bytes[0])};
          if (below(3) == 0) result = {.miss = WindowMiss::kRecycled, .window = {}};
          check(core.on_event(PeerReadFinished{read.key(), std::move(result)}, now));
        }
        break;
      case 4:
        check(core.on_timer(now));
        break;
      default:
        if (below(10) > 0) break;
        std::erase_if(waiting, [&](const GetId& get) { return get.first == id.first; });
        std::erase_if(held, [&](const auto& get) { return get.first.first == id.first; });
        check(core.end_session(id.first, now));
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
  // Everything ends when nobody asks any more.
  for (const auto& [serial, key] : std::exchange(reads, {})) {
    check(core.on_event(PeerReadFinished{serial, {WindowMiss::kDeadline, {}}},
                        at(milliseconds(now_ms))));
  }
  ASSERT_TRUE(waiting.empty());
  held.clear();
  check(core.end_session(1, at(seconds(100))));
  check(core.end_session(2, at(seconds(100))));
  ASSERT_EQ(core.counters().pool.used_slots, 0u);
  ASSERT_EQ(core.next_timer(), std::nullopt);
}

TEST(WindowCoreProperty, EveryGetIsAnsweredOnceAndHeldWindowsStay) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    run_random_engines(seed);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace millrace::storage::fetch
