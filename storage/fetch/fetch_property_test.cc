// FetchCore under random events of several sessions, against storage/fetch/fetch_oracle.h.

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "storage/fetch/fetch_oracle.h"

namespace millrace::storage::fetch {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t kBlockBytes = 64;
constexpr int kChains = 5;

BlockKey key_of(int chain, int index) {
  BlockKey key;
  key.bytes[0] = static_cast<std::uint8_t>(chain);
  key.bytes[1] = static_cast<std::uint8_t>(index);
  return key;
}

/// One run: sessions, a store with holes, a clock, the core and the oracle.
class FetchWorld {
 public:
  explicit FetchWorld(std::uint64_t seed) : random_(seed) {
    limits_.max_fetches_per_session = 4;
    limits_.max_keys_per_fetch = 12;
    limits_.max_reads_in_flight = 1 + pick(4);
    limits_.slot_wait = milliseconds(30);
    limits_.longest_read = milliseconds(80);
    limits_.lease = milliseconds(200);
    capacity_ = {.read_slots = static_cast<std::uint32_t>(2 + pick(7)),
                 .write_slots = static_cast<std::uint32_t>(1 + pick(4)),
                 .block_bytes = kBlockBytes};
    core_.emplace(limits_, capacity_);
    oracle_.emplace(limits_, capacity_);
    for (int chain = 0; chain < kChains; ++chain) stored_.push_back(static_cast<int>(pick(14)));
  }

  void step() {
    switch (pick(16)) {
      case 0:
        return session();
      case 1:
      case 2:
      case 3:
        return fetch();
      case 4:
        return reprioritise();
      case 5:
        return cancel();
      case 6:
      case 7:
        return release();
      case 8:
      case 9:
      case 10:
      case 11:
        return finish_read();
      case 12:
        return write();
      case 13:
        return finish_store();
      default:
        now_ += milliseconds(pick(25));
        if (const auto timer = core_->next_timer(); timer && *timer <= now_) send(TimerDue{});
    }
  }

  /// Everything ends: then everything is free.
  void wind_down() {
    send(BeginDrain{});
    for (const SessionId session : std::set(oracle_->sessions)) send(SessionEnded{session});
    while (oracle_->in_flight() > 0) finish_read();
    while (has_sealed()) finish_store();
    const FetchCounters counters = core_->counters();
    if (!core_->is_idle() || counters.filling_slots + counters.ready_slots != 0 ||
        counters.writing_slots + counters.sealed_slots != 0 || counters.leased_blocks != 0 ||
        counters.queued_blocks != 0 || counters.sessions != 0 || !oracle_->reads.empty() ||
        !oracle_->writes.empty()) {
      oracle_->problems.emplace_back("something is left over");
    }
    if (core_->next_timer() && *core_->next_timer() > now_ + limits_.lease) {
      oracle_->problems.emplace_back("a timer is left over");
    }
  }

  const FetchOracle& oracle() const { return *oracle_; }
  FetchCounters counters() const { return core_->counters(); }

 private:
  std::uint64_t pick(std::uint64_t count) { return random_() % count; }
  template <typename Range>
  auto pick_of(const Range& range) {
    return *std::next(range.begin(), static_cast<std::ptrdiff_t>(pick(range.size())));
  }

  void send(const FetchEvent& event) {
    oracle_->before(event, now_);
    const FetchActions actions = core_->on_event(event, now_);
    for (const FetchAction& action : actions) oracle_->on_action(action);
    oracle_->after();
  }

  void session() {
    if (oracle_->sessions.size() < 3) return send(SessionOpened{++last_session_});
    if (pick(3) == 0) send(SessionEnded{pick_of(oracle_->sessions)});
  }
  void fetch() {
    if (oracle_->sessions.empty()) return;
    FetchBlocks fetch{.session = pick_of(oracle_->sessions),
                      .request_id = ++last_request_,
                      .keys = {},
                      .block_bytes = kBlockBytes,
                      .priority = static_cast<std::int64_t>(pick(4)),
                      .deadline = now_ + milliseconds(pick(160))};
    const int chain = static_cast<int>(pick(kChains));
    const int length = static_cast<int>(pick(14));
    for (int i = 0; i < length; ++i) fetch.keys.push_back(key_of(chain, i));
    // A careless engine names a block twice.
    if (length > 2 && pick(10) == 0) fetch.keys[2] = fetch.keys[0];
    send(fetch);
  }
  void reprioritise() {
    const auto names = oracle_->fetch_names();
    if (names.empty()) return;
    const auto [session, request] = pick_of(names);
    send(Reprioritise{session, request, static_cast<std::int64_t>(pick(4))});
  }
  void cancel() {
    const auto names = oracle_->fetch_names();
    if (names.empty()) return;
    const auto [session, request] = pick_of(names);
    send(CancelFetch{session, request});
  }
  void release() {
    if (oracle_->leases.empty()) return;
    const auto [name, index] = pick_of(oracle_->leases).first;
    // Twice, and what it never had: both mean nothing.
    send(ReleaseBlocks{name.first, name.second, {index, index, index + 1, 1000}});
  }

  void finish_read() {
    std::vector<std::pair<std::uint32_t, FetchOracle::ReadUse>> filling;
    for (const auto& [slot, use] : oracle_->reads) {
      if (use.is_filling) filling.emplace_back(slot, use);
    }
    if (filling.empty()) return;
    const auto [slot, use] = pick_of(filling);
    FetchEnd end =
        use.key.bytes[1] < stored_[use.key.bytes[0]] ? FetchEnd::kComplete : FetchEnd::kNotFound;
    if (now_ >= use.deadline && pick(2) == 0) end = FetchEnd::kDeadline;
    if (pick(20) == 0) end = FetchEnd::kUnreadable;
    send(ReadFinished{{slot, use.generation}, end});
  }

  void write() {
    if (oracle_->sessions.empty()) return;
    const SessionId session = pick_of(oracle_->sessions);
    if (oracle_->writes.empty() || pick(3) == 0) {
      return send(ReserveSlots{session, 1, static_cast<std::uint32_t>(pick(4))});
    }
    // Perhaps another's slot, or one that is sealed already.
    const auto [slot, use] = pick_of(oracle_->writes);
    const SlotRef ref{slot, use.generation - (pick(8) == 0 ? 1 : 0)};
    if (pick(4) == 0) return send(ReturnSlot{session, ref});
    send(SealSlot{.session = session,
                  .ref = ref,
                  .key = key_of(1, 1),
                  .block_bytes = static_cast<std::uint32_t>(pick(8) == 0 ? 0 : kBlockBytes)});
  }

  bool has_sealed() const {
    return std::any_of(oracle_->writes.begin(), oracle_->writes.end(),
                       [](const auto& entry) { return entry.second.is_sealed; });
  }
  void finish_store() {
    for (const auto& [slot, use] : oracle_->writes) {
      if (use.is_sealed) return send(StoreFinished{{slot, use.generation}, StoreEnd::kStored});
    }
  }

  std::mt19937_64 random_;
  FetchLimits limits_;
  ArenaCapacity capacity_;
  std::optional<FetchCore> core_;
  std::optional<FetchOracle> oracle_;
  TimePoint now_{};
  std::vector<int> stored_;  ///< blocks of each chain that are stored
  SessionId last_session_ = 0;
  RequestId last_request_ = 0;
};

TEST(FetchProperty, EveryActionIsTheOracles) {
  const char* given = std::getenv("MILLRACE_FETCH_SEED");
  const std::uint64_t first = given == nullptr ? 0 : std::strtoull(given, nullptr, 10);
  const std::uint64_t last = given == nullptr ? 10000 : first + 1;
  FetchCounters sum;
  int busy_ends = 0;
  int retries = 0;
  for (std::uint64_t seed = first; seed < last; ++seed) {
    FetchWorld world(seed);
    for (int i = 0; i < 300 && world.oracle().problems.empty(); ++i) world.step();
    if (world.oracle().problems.empty()) world.wind_down();
    ASSERT_TRUE(world.oracle().problems.empty())
        << world.oracle().problems.front() << "\nreplay: MILLRACE_FETCH_SEED=" << seed
        << " storage_fetch_test --gtest_filter=FetchProperty.*";
    const FetchCounters counters = world.counters();
    sum.reads += counters.reads;
    sum.shared_blocks += counters.shared_blocks;
    sum.unwanted_reads += counters.unwanted_reads;
    sum.leases_lost += counters.leases_lost;
    for (std::size_t i = 0; i < kFetchEnds; ++i) sum.ends[i] += counters.ends[i];
    busy_ends += world.oracle().busy_ends;
    retries += world.oracle().retries;
  }
  if (given != nullptr) return;
  // What the property is about has happened often.
  for (const FetchEnd end : {FetchEnd::kComplete, FetchEnd::kNotFound, FetchEnd::kUnreadable,
                             FetchEnd::kDeadline, FetchEnd::kBusy, FetchEnd::kCancelled}) {
    EXPECT_GT(sum.ends[static_cast<std::size_t>(end)], 500u) << fetch_end_name(end);
  }
  EXPECT_GT(sum.shared_blocks, 5000u);
  EXPECT_GT(sum.unwanted_reads, 1000u);
  EXPECT_GT(sum.leases_lost, 1000u);
  EXPECT_GT(busy_ends, 100);
  EXPECT_GT(retries, 50);
  RecordProperty("reads", static_cast<int>(sum.reads));
}

}  // namespace
}  // namespace millrace::storage::fetch
