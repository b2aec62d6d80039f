#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "common/time_point.h"
#include "storage/fetch/fetch_types.h"

namespace millrace::storage::fetch {

/// The slots of the write arena as the core sees them: reserved by a session, sealed, stored, free.
/// Pure; one thread.
class WriteTable {
 public:
  explicit WriteTable(std::uint32_t slot_count);

  /// Up to `count` free slots, now the session's until `expires_at` (the later a call, the later
  /// that time). Each is under a new generation.
  std::vector<SlotRef> reserve(SessionId session, std::uint32_t count, TimePoint expires_at);
  /// Whether the slot is reserved by the session, and not sealed.
  bool is_reserved(const SlotRef& ref, SessionId session) const;
  /// A reserved slot has been filled: it no longer expires.
  void seal(const SlotRef& ref);
  /// Whose block was in a sealed slot; nullopt when that use is over already.
  std::optional<SessionId> sealed_by(const SlotRef& ref) const;
  void give_back(const SlotRef& ref);

  /// Reserved slots of a session, in the order of slots.
  std::vector<SlotRef> reserved_by(SessionId session) const;
  /// A reserved slot whose time is over; nullopt when there is none.
  std::optional<SlotRef> overdue(TimePoint now);
  /// When to look for one.
  std::optional<TimePoint> next_expiry() const;

  std::uint64_t count(SlotState state) const;

 private:
  struct Slot {
    SlotState state = SlotState::kFree;
    std::uint64_t generation = 0;
    SessionId session = 0;
  };
  struct Expiry {
    TimePoint at{};
    SlotRef ref;
  };
  const Slot* find_use(const SlotRef& ref, SlotState state) const;

  std::vector<Slot> slots_;
  std::deque<std::uint32_t> free_;
  std::deque<Expiry> expiries_;  ///< by time; those of uses that are over are skipped
};

}  // namespace millrace::storage::fetch
