#include "storage/swa/window_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>

#include "common/str_cat.h"

namespace millrace::storage::swa {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

BlockKey key_of(unsigned number) {
  BlockKey key;
  key.bytes[0] = static_cast<std::uint8_t>(number);
  key.bytes[1] = static_cast<std::uint8_t>(number >> 8);
  return key;
}

TimePoint at(std::chrono::nanoseconds time) { return TimePoint(time); }

TEST(WindowPool, AWindowIsFoundUntilItsTimeIsOver) {
  WindowPool pool({.slot_count = 2, .ttl = seconds(180)});
  const auto placed = pool.store(key_of(1), 100, WindowOrigin::kOwn, at(seconds(10)));
  ASSERT_TRUE(placed.has_value());
  EXPECT_TRUE(placed->is_new);
  const auto lease = pool.lease(key_of(1), at(seconds(100)));
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(lease->slot, placed->slot);
  EXPECT_EQ(lease->bytes, 100u);
  pool.release(lease->id, at(seconds(101)));
  EXPECT_EQ(pool.next_expiry(), at(seconds(190)));  // use does not prolong it
  EXPECT_TRUE(pool.expire(at(seconds(189))).empty());
  EXPECT_EQ(pool.expire(at(seconds(190))), std::vector{placed->slot});
  EXPECT_FALSE(pool.lease(key_of(1), at(seconds(190))).has_value());
  EXPECT_EQ(pool.reason_gone(placed->slot), WindowMiss::kExpired);
  EXPECT_EQ(pool.next_expiry(), std::nullopt);
}

TEST(WindowPool, TheOldestMakesRoomUnlessItIsLeased) {
  WindowPool pool({.slot_count = 2});
  const auto first = pool.store(key_of(1), 1, WindowOrigin::kOwn, at(seconds(1)));
  const auto second = pool.store(key_of(2), 1, WindowOrigin::kOwn, at(seconds(2)));
  const auto lease = pool.lease(key_of(1), at(seconds(3)));
  const auto third = pool.store(key_of(3), 1, WindowOrigin::kOwn, at(seconds(4)));
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(third->slot.slot, second->slot.slot);
  EXPECT_GT(third->slot.generation, second->slot.generation);
  EXPECT_EQ(pool.reason_gone(second->slot), WindowMiss::kRecycled);
  ASSERT_TRUE(pool.lease(key_of(3), at(seconds(5))).has_value());
  EXPECT_FALSE(pool.store(key_of(4), 1, WindowOrigin::kOwn, at(seconds(6))).has_value());
  pool.release(lease->id, at(seconds(7)));
  const auto fourth = pool.store(key_of(4), 1, WindowOrigin::kOwn, at(seconds(8)));
  ASSERT_TRUE(fourth.has_value());
  EXPECT_EQ(fourth->slot.slot, first->slot.slot);
  EXPECT_EQ(pool.counters().evictions, 2u);
}

TEST(WindowPool, TheFirstWriterOfAWindowWinsAndTheSecondProlongsIt) {
  WindowPool pool({.slot_count = 2, .ttl = seconds(180), .copy_ttl = seconds(10)});
  const auto copy = pool.store(key_of(1), 5, WindowOrigin::kCopy, at(seconds(0)));
  EXPECT_EQ(pool.next_expiry(), at(seconds(10)));
  const auto own = pool.store(key_of(1), 5, WindowOrigin::kOwn, at(seconds(1)));
  EXPECT_EQ(own->slot, copy->slot);
  EXPECT_FALSE(own->is_new);
  EXPECT_EQ(pool.next_expiry(), at(seconds(181)));
  pool.store(key_of(1), 5, WindowOrigin::kCopy, at(seconds(2)));
  EXPECT_EQ(pool.next_expiry(), at(seconds(181)));
  // One of another size is another layout's, and takes its place.
  const auto other = pool.store(key_of(1), 6, WindowOrigin::kOwn, at(seconds(3)));
  EXPECT_TRUE(other->is_new);
  EXPECT_EQ(pool.lease(key_of(1), at(seconds(4)))->bytes, 6u);
}

TEST(WindowPool, ALeaseHasAnEnd) {
  WindowPool pool({.slot_count = 1, .ttl = seconds(180), .lease = seconds(60)});
  const auto placed = pool.store(key_of(1), 1, WindowOrigin::kOwn, at(seconds(0)));
  const auto lease = pool.lease(key_of(1), at(seconds(170)));
  EXPECT_TRUE(pool.expire(at(seconds(200))).empty());  // over, but kept in its place
  EXPECT_FALSE(pool.lease(key_of(1), at(seconds(200))).has_value());
  EXPECT_FALSE(pool.store(key_of(2), 1, WindowOrigin::kOwn, at(seconds(200))).has_value());
  EXPECT_EQ(pool.expire(at(seconds(230))), std::vector{placed->slot});
  EXPECT_EQ(pool.counters().leases_lost, 1u);
  pool.release(lease->id, at(seconds(231)));
  EXPECT_TRUE(pool.store(key_of(2), 1, WindowOrigin::kOwn, at(seconds(231))).has_value());
}

TEST(WindowPool, WithoutSlotsEverythingIsMissing) {
  WindowPool pool({.slot_count = 0});
  EXPECT_FALSE(pool.store(key_of(1), 1, WindowOrigin::kOwn, at(seconds(0))).has_value());
  EXPECT_FALSE(pool.lease(key_of(1), at(seconds(0))).has_value());
  EXPECT_EQ(pool.reason_gone({0, 1}), WindowMiss::kRecycled);
}

TEST(WindowPool, SaysWhenASlotHoldsWhatNobodyAnnounced) {
  WindowPool pool({.slot_count = 1});
  const auto placed = pool.store(key_of(1), 1, WindowOrigin::kOwn, at(seconds(0)));
  EXPECT_EQ(pool.reason_gone(placed->slot), WindowMiss::kCorrupt);
}

/// Keeps every use of every slot for ever, and looks at all of them each time.
class PoolOracle {
 public:
  struct Use {
    BlockKey key;
    std::uint32_t bytes = 0;
    WindowSlot slot;
    TimePoint expires_at{};
    bool is_replaced = false;  // by another window of its key, or by the next in its slot
    bool was_returned = false;
    std::map<WindowPool::LeaseId, TimePoint> leases;
  };

  explicit PoolOracle(const WindowPoolLimits& limits) : limits_(limits) {}

  void advance(TimePoint now) { now_ = std::max(now_, now); }
  bool is_live(const Use& use) const { return !use.is_replaced && now_ < use.expires_at; }
  bool is_leased(const Use& use) const {
    return std::any_of(use.leases.begin(), use.leases.end(),
                       [&](const auto& lease) { return now_ < lease.second; });
  }
  Use* find(const BlockKey& key) {
    for (Use& use : uses_) {
      if (is_live(use) && use.key == key) return &use;
    }
    return nullptr;
  }
  bool is_free(std::uint32_t slot) const {
    return std::none_of(uses_.begin(), uses_.end(), [&](const Use& use) {
      return use.slot.slot == slot && (is_live(use) || is_leased(use));
    });
  }
  std::uint32_t free_slots() const {
    std::uint32_t count = 0;
    for (std::uint32_t slot = 0; slot < limits_.slot_count; ++slot) count += is_free(slot);
    return count;
  }

  void check_store(const BlockKey& key, std::uint32_t bytes, WindowOrigin origin,
                   const std::optional<WindowPool::Placement>& placed) {
    const TimePoint expires_at =
        now_ + (origin == WindowOrigin::kOwn ? limits_.ttl : limits_.copy_ttl);
    if (Use* const there = find(key)) {
      if (there->bytes == bytes) {
        ASSERT_TRUE(placed && !placed->is_new);
        ASSERT_EQ(placed->slot, there->slot);
        there->expires_at = std::max(there->expires_at, expires_at);
        return;
      }
      there->is_replaced = true;
    }
    Use* victim = nullptr;
    for (Use& use : uses_) {
      if (!is_live(use) || is_leased(use)) continue;
      if (victim == nullptr || use.expires_at < victim->expires_at) victim = &use;
    }
    const bool has_free = free_slots() > 0;
    ASSERT_EQ(placed.has_value(), has_free || victim != nullptr);
    if (!placed) return;
    ASSERT_TRUE(placed->is_new);
    if (has_free) {
      ASSERT_TRUE(is_free(placed->slot.slot)) << "a slot was taken that is in use";
    } else {
      // Of several that end at one time, any.
      const auto taken = std::find_if(uses_.begin(), uses_.end(), [&](const Use& use) {
        return is_live(use) && use.slot.slot == placed->slot.slot;
      });
      ASSERT_NE(taken, uses_.end());
      ASSERT_FALSE(is_leased(*taken)) << "a leased slot was used anew";
      ASSERT_EQ(taken->expires_at, victim->expires_at);
    }
    for (Use& use : uses_) {
      if (use.slot.slot != placed->slot.slot) continue;
      use.is_replaced = true;
      ASSERT_LT(use.slot.generation, placed->slot.generation);
    }
    uses_.push_back(
        {.key = key, .bytes = bytes, .slot = placed->slot, .expires_at = expires_at, .leases = {}});
  }

  void check_lease(const BlockKey& key, const std::optional<WindowPool::Lease>& lease) {
    Use* const use = find(key);
    ASSERT_EQ(lease.has_value(), use != nullptr);
    if (use == nullptr) return;
    ASSERT_EQ(lease->slot, use->slot);
    ASSERT_EQ(lease->bytes, use->bytes);
    use->leases[lease->id] = now_ + limits_.lease;
  }
  void release(WindowPool::LeaseId id) {
    for (Use& use : uses_) use.leases.erase(id);
  }

  /// Returned is what is over for good and still the last use of its slot, once.
  void check_expired(const std::vector<WindowSlot>& over) {
    for (Use& use : uses_) {
      const bool is_last = std::none_of(uses_.begin(), uses_.end(), [&](const Use& other) {
        return other.slot.slot == use.slot.slot && other.slot.generation > use.slot.generation;
      });
      const bool is_due = is_last && !is_live(use) && !is_leased(use) && !use.was_returned;
      ASSERT_EQ(std::count(over.begin(), over.end(), use.slot), is_due ? 1 : 0);
      use.was_returned = use.was_returned || is_due;
    }
  }
  void check_counters(const WindowPoolCounters& counters) const {
    ASSERT_EQ(counters.used_slots, limits_.slot_count - free_slots());
    std::uint64_t leased = 0;
    for (const Use& use : uses_) leased += is_leased(use);
    ASSERT_EQ(counters.leased_slots, leased);
  }

 private:
  const WindowPoolLimits limits_;
  TimePoint now_{};
  std::vector<Use> uses_;
};

void run_against_oracle(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  const WindowPoolLimits limits{.slot_count = static_cast<std::uint32_t>(1 + below(6)),
                                .ttl = milliseconds(1000),
                                .copy_ttl = milliseconds(100),
                                .lease = milliseconds(300)};
  WindowPool pool(limits);
  PoolOracle oracle(limits);
  std::vector<WindowPool::LeaseId> leases;
  std::int64_t now_ms = 5000;
  for (int step = 0; step < 300; ++step) {
    now_ms += static_cast<std::int64_t>(below(40));
    if (below(50) == 0) now_ms += 2000;                                    // a jump ahead
    if (below(20) == 0) now_ms -= static_cast<std::int64_t>(below(1500));  // and one back
    const TimePoint now = at(milliseconds(std::max<std::int64_t>(now_ms, 0)));
    oracle.advance(now);
    const BlockKey key = key_of(static_cast<unsigned>(below(10)));
    switch (below(4)) {
      case 0: {
        const auto bytes = static_cast<std::uint32_t>(below(8) == 0 ? 2 : 1);
        const auto origin = below(3) == 0 ? WindowOrigin::kCopy : WindowOrigin::kOwn;
        oracle.check_store(key, bytes, origin, pool.store(key, bytes, origin, now));
        break;
      }
      case 1: {
        const auto lease = pool.lease(key, now);
        oracle.check_lease(key, lease);
        if (lease) leases.push_back(lease->id);
        break;
      }
      case 2:
        if (!leases.empty()) {
          const WindowPool::LeaseId id = leases[below(leases.size())];  // perhaps again
          pool.release(id, now);
          oracle.release(id);
        }
        break;
      default:
        oracle.check_expired(pool.expire(now));
    }
    if (::testing::Test::HasFatalFailure()) return;
    pool.release(0, now);  // no lease: only brings it up to `now`
    oracle.check_counters(pool.counters());
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(WindowPoolProperty, DoesWhatTheOracleDoes) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    run_against_oracle(seed);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace millrace::storage::swa
