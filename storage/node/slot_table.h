#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/time_point.h"

namespace millrace::storage::node {

/// Which slots of a target are free. A slot is free, used, cooling or bad:
///
///     free --take--> used --cool--> cooling --reclaim--> free
///                     |  --put_back (never named by a record)--> free
///                     '--condemn (its content is unknown for good)--> bad
///
/// A cooling slot is freed once its time has come and no read holds it. Pure; one thread.
class SlotTable {
 public:
  explicit SlotTable(std::uint64_t slot_count);

  /// Says at the start that a record names the slot. False: there is no such slot, or another
  /// record names it too.
  [[nodiscard]] bool mark_used(std::uint64_t slot);

  /// A free slot, now used; nullopt when there is none. Goes round, so that a slot that was just
  /// freed is the last to be used again.
  std::optional<std::uint64_t> take();
  void put_back(std::uint64_t slot);
  void condemn(std::uint64_t slot);
  /// No record names it any more, durably; it may be reused after `not_before`.
  void cool(std::uint64_t slot, TimePoint not_before);

  /// A read is in flight on the slot.
  void pin(std::uint64_t slot);
  void unpin(std::uint64_t slot);

  /// Frees the cooling slots that may be; those that a read still holds wait for a later call.
  void reclaim(TimePoint now);

  std::uint64_t slot_count() const { return slot_count_; }
  std::uint64_t free_count() const { return free_count_; }
  std::uint64_t cooling_count() const { return cooling_.size(); }
  std::uint64_t bad_count() const { return bad_count_; }
  /// Whatever is not free counts, also what is not yet reclaimed.
  std::uint64_t used_count() const { return slot_count_ - free_count_; }
  std::uint64_t pinned_count() const { return pins_.size(); }

 private:
  bool is_free(std::uint64_t slot) const;
  void set_free(std::uint64_t slot, bool free);

  struct Cooling {
    TimePoint not_before;
    std::uint64_t slot;
  };

  const std::uint64_t slot_count_;
  std::vector<std::uint64_t> free_bits_;  // one bit a slot
  std::uint64_t free_count_;
  std::uint64_t bad_count_ = 0;
  std::uint64_t next_word_ = 0;  // where take() looks first
  std::deque<Cooling> cooling_;  // in order of time: the grace is one for all
  std::unordered_map<std::uint64_t, int> pins_;
};

}  // namespace millrace::storage::node
