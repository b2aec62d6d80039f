#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/time_point.h"
#include "storage/kv/block_key.h"
#include "storage/swa/window_miss.h"

namespace millrace::storage::swa {

struct WindowPoolLimits {
  std::uint32_t slot_count = 0;
  /// How long a window is kept, from its storing on. Use does not prolong it.
  std::chrono::milliseconds ttl{180'000};
  /// The same of a copy from another machine: long enough that requests which come together share
  /// it, too short to matter beside the time that the original has.
  std::chrono::milliseconds copy_ttl{10'000};
  /// How long an engine may keep a window from being replaced.
  std::chrono::milliseconds lease{60'000};
};

/// A use of a slot. Names something else, or nothing, once the slot has been used anew.
struct WindowSlot {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  bool operator==(const WindowSlot&) const = default;
};

enum class WindowOrigin : std::uint8_t {
  kOwn,   ///< computed on this machine
  kCopy,  ///< of another machine's
};

/// Counts of what has been so far, and at the end what is there now.
struct WindowPoolCounters {
  std::uint64_t evictions = 0;  ///< windows replaced before their time
  std::uint64_t expiries = 0;
  std::uint64_t leases_lost = 0;  ///< taken back at the end of their time
  std::uint64_t used_slots = 0;   ///< hold a window, or a lease of one that is over
  std::uint64_t leased_slots = 0;
};

/// The slots of a machine for windows as its owner sees them: which window is in which, until when,
/// and who keeps it there. Pure; one thread.
///
/// A window is found from its storing until its time is over, or it is the one that makes room: of
/// those that nobody leases, the one whose time is over first. A leased slot holds what it holds
/// until the last lease ends, even if its time is over. Time never runs backwards: an earlier `now`
/// counts as the latest one seen.
class WindowPool {
 public:
  using LeaseId = std::uint64_t;

  struct Placement {
    WindowSlot slot;
    /// The bytes are to be copied in. False: the pool has this window already (the first writer
    /// wins), and keeps it as long as a new one.
    bool is_new = true;
  };
  struct Lease {
    LeaseId id = 0;
    WindowSlot slot;
    std::uint32_t bytes = 0;
  };

  explicit WindowPool(const WindowPoolLimits& limits);

  /// A slot for this window. nullopt: all slots are leased, or there are none.
  std::optional<Placement> store(const BlockKey& key, std::uint32_t bytes, WindowOrigin origin,
                                 TimePoint now);
  /// Keeps the window of that key in its slot. nullopt: there is none.
  std::optional<Lease> lease(const BlockKey& key, TimePoint now);
  /// Ends a lease. Of one that is over: no error.
  void release(LeaseId id, TimePoint now);

  /// Why a window cannot be had that was said to be in that use of a slot: kExpired; kRecycled; or
  /// kCorrupt, when the slot holds another one that has never been replaced.
  WindowMiss reason_gone(const WindowSlot& use) const;

  /// Ends what `now` ends. The uses of slots that are over since the last call, except those whose
  /// slots were used anew: nobody may read them any more.
  std::vector<WindowSlot> expire(TimePoint now);
  /// When to call it; nullopt: nothing ends by itself.
  std::optional<TimePoint> next_expiry() const;

  WindowPoolCounters counters() const;

 private:
  struct Slot {
    std::uint64_t generation = 0;
    BlockKey key;
    std::uint32_t bytes = 0;
    bool is_live = false;  ///< can be found
    std::uint32_t leases = 0;
    TimePoint expires_at{};
  };
  struct Hold {
    std::uint32_t slot = 0;
    TimePoint until{};
  };

  void advance(TimePoint now);
  std::optional<std::uint32_t> take_slot();
  void set_expiry(std::uint32_t slot, TimePoint at);
  void end(std::uint32_t slot);
  void end_lease(std::map<LeaseId, Hold>::iterator lease);
  void give_back(std::uint32_t slot);

  const WindowPoolLimits limits_;
  TimePoint now_{};
  std::vector<Slot> slots_;
  std::deque<std::uint32_t> free_;  ///< free for longest first: a late reader of it loses least
  std::unordered_map<BlockKey, std::uint32_t, BlockKeyHash> by_key_;  ///< live ones
  std::set<std::pair<TimePoint, std::uint32_t>> by_expiry_;           ///< live ones
  std::set<std::pair<TimePoint, std::uint32_t>> evictable_;           ///< of them, not leased
  std::map<LeaseId, Hold> leases_;  ///< all have the same time: the first one ends first
  LeaseId last_lease_ = 0;
  std::vector<WindowSlot> over_;  ///< for expire()
  WindowPoolCounters counters_;
};

}  // namespace millrace::storage::swa
