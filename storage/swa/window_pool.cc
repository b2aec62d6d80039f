#include "storage/swa/window_pool.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::storage::swa {

WindowPool::WindowPool(const WindowPoolLimits& limits)
    : limits_(limits), slots_(limits.slot_count) {
  for (std::uint32_t slot = 0; slot < limits.slot_count; ++slot) free_.push_back(slot);
}

std::optional<WindowPool::Placement> WindowPool::store(const BlockKey& key, std::uint32_t bytes,
                                                       WindowOrigin origin, TimePoint now) {
  advance(now);
  const TimePoint expires_at =
      now_ + (origin == WindowOrigin::kOwn ? limits_.ttl : limits_.copy_ttl);
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    const std::uint32_t slot = found->second;
    if (slots_[slot].bytes == bytes) {
      set_expiry(slot, std::max(expires_at, slots_[slot].expires_at));
      return Placement{.slot = {slot, slots_[slot].generation}, .is_new = false};
    }
    end(slot);  // of another layout: it serves nobody who asks for this one
  }
  const std::optional<std::uint32_t> slot = take_slot();
  if (!slot) return std::nullopt;
  Slot& use = slots_[*slot];
  ++use.generation;
  use.key = key;
  use.bytes = bytes;
  use.is_live = true;
  by_key_.emplace(key, *slot);
  set_expiry(*slot, expires_at);
  return Placement{.slot = {*slot, use.generation}, .is_new = true};
}

std::optional<WindowPool::Lease> WindowPool::lease(const BlockKey& key, TimePoint now) {
  advance(now);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  Slot& use = slots_[found->second];
  evictable_.erase({use.expires_at, found->second});
  ++use.leases;
  leases_.emplace(++last_lease_, Hold{found->second, now_ + limits_.lease});
  return Lease{last_lease_, {found->second, use.generation}, use.bytes};
}

void WindowPool::release(LeaseId id, TimePoint now) {
  advance(now);
  if (const auto found = leases_.find(id); found != leases_.end()) end_lease(found);
}

WindowMiss WindowPool::reason_gone(const WindowSlot& use) const {
  if (use.slot >= slots_.size() || slots_[use.slot].generation != use.generation) {
    return WindowMiss::kRecycled;
  }
  return slots_[use.slot].is_live ? WindowMiss::kCorrupt : WindowMiss::kExpired;
}

std::vector<WindowSlot> WindowPool::expire(TimePoint now) {
  advance(now);
  // What was over and has been used anew meanwhile is another use.
  std::erase_if(
      over_, [&](const WindowSlot& use) { return slots_[use.slot].generation != use.generation; });
  return std::exchange(over_, {});
}

std::optional<TimePoint> WindowPool::next_expiry() const {
  if (!over_.empty()) return now_;
  std::optional<TimePoint> next;
  if (!by_expiry_.empty()) next = by_expiry_.begin()->first;
  if (!leases_.empty()) {
    const TimePoint until = leases_.begin()->second.until;
    next = next ? std::min(*next, until) : until;
  }
  return next;
}

WindowPoolCounters WindowPool::counters() const {
  WindowPoolCounters counters = counters_;
  counters.used_slots = slots_.size() - free_.size();
  counters.leased_slots = static_cast<std::uint64_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& use) { return use.leases > 0; }));
  return counters;
}

void WindowPool::advance(TimePoint now) {
  now_ = std::max(now_, now);
  while (!leases_.empty() && leases_.begin()->second.until <= now_) {
    ++counters_.leases_lost;
    end_lease(leases_.begin());
  }
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now_) {
    ++counters_.expiries;
    end(by_expiry_.begin()->second);
  }
}

std::optional<std::uint32_t> WindowPool::take_slot() {
  if (free_.empty() && !evictable_.empty()) {
    ++counters_.evictions;
    end(evictable_.begin()->second);
  }
  if (free_.empty()) return std::nullopt;
  const std::uint32_t slot = free_.front();
  free_.pop_front();
  return slot;
}

void WindowPool::set_expiry(std::uint32_t slot, TimePoint at) {
  Slot& use = slots_[slot];
  by_expiry_.erase({use.expires_at, slot});
  evictable_.erase({use.expires_at, slot});
  use.expires_at = at;
  by_expiry_.emplace(at, slot);
  if (use.leases == 0) evictable_.emplace(at, slot);
}

/// The window can be found no more; its slot is free as soon as nobody leases it.
void WindowPool::end(std::uint32_t slot) {
  Slot& use = slots_[slot];
  CHECK(use.is_live);
  use.is_live = false;
  by_key_.erase(use.key);
  by_expiry_.erase({use.expires_at, slot});
  evictable_.erase({use.expires_at, slot});
  if (use.leases == 0) give_back(slot);
}

void WindowPool::end_lease(std::map<LeaseId, Hold>::iterator lease) {
  const std::uint32_t slot = lease->second.slot;
  leases_.erase(lease);
  Slot& use = slots_[slot];
  if (--use.leases > 0) return;
  use.is_live ? void(evictable_.emplace(use.expires_at, slot)) : give_back(slot);
}

void WindowPool::give_back(std::uint32_t slot) {
  free_.push_back(slot);
  over_.push_back({slot, slots_[slot].generation});
}

}  // namespace millrace::storage::swa
