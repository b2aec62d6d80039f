#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/time_point.h"
#include "storage/fetch/arena.h"
#include "storage/kv/block_key.h"

namespace millrace::storage::fetch {

/// A block of a fetch that waits for a read.
struct BlockWaiter {
  std::uint64_t fetch = 0;
  std::uint32_t index = 0;
};

struct ReadSlot {
  SlotState state = SlotState::kFree;
  std::uint64_t generation = 0;
  BlockKey key;
  std::uint32_t block_bytes = 0;
  /// The read had all the time that reads may take, not what was left to one fetch.
  bool has_full_time = false;
  std::vector<BlockWaiter> waiters;  ///< kFilling: who wants the block; nobody: given up
  std::uint32_t holders = 0;         ///< kReady: blocks of fetches that it is; never 0
};

/// The slots of the read arena as the core sees them: which block is in which, at most once each.
/// Pure; one thread.
class ReadSlots {
 public:
  explicit ReadSlots(std::uint32_t slot_count);

  /// The slot that holds the block or is being filled with it.
  std::optional<std::uint32_t> find(const BlockKey& key) const;
  bool has_free() const { return !free_.empty(); }
  /// A free slot, now kFilling with that block, under a new generation. The slot that has been free
  /// for longest, so that a copy under way of what was in it most likely ends before. CHECKs that
  /// there is one and that the block is in none.
  std::uint32_t take(const BlockKey& key);
  void give_back(std::uint32_t slot);

  ReadSlot& at(std::uint32_t slot) { return slots_[slot]; }
  /// nullptr when that use of the slot is over.
  ReadSlot* find_use(const SlotRef& ref);
  SlotRef ref(std::uint32_t slot) const { return {slot, slots_[slot].generation}; }
  std::uint64_t count(SlotState state) const;

 private:
  std::vector<ReadSlot> slots_;
  std::deque<std::uint32_t> free_;
  std::unordered_map<BlockKey, std::uint32_t, BlockKeyHash> by_key_;
};

}  // namespace millrace::storage::fetch
