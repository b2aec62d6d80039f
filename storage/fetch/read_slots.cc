#include "storage/fetch/read_slots.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::storage::fetch {

ReadSlots::ReadSlots(std::uint32_t slot_count) : slots_(slot_count) {
  for (std::uint32_t slot = 0; slot < slot_count; ++slot) free_.push_back(slot);
  by_key_.reserve(slot_count);
}

std::optional<std::uint32_t> ReadSlots::find(const BlockKey& key) const {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  return found->second;
}

std::uint32_t ReadSlots::take(const BlockKey& key) {
  CHECK(!free_.empty());
  const std::uint32_t slot = free_.front();
  free_.pop_front();
  CHECK(by_key_.emplace(key, slot).second);
  slots_[slot] = {.state = SlotState::kFilling,
                  .generation = slots_[slot].generation + 1,
                  .key = key,
                  .waiters = {}};
  return slot;
}

void ReadSlots::give_back(std::uint32_t slot) {
  CHECK(slots_[slot].waiters.empty() && slots_[slot].holders == 0);
  by_key_.erase(slots_[slot].key);
  slots_[slot].state = SlotState::kFree;
  free_.push_back(slot);
}

ReadSlot* ReadSlots::find_use(const SlotRef& ref) {
  if (ref.slot >= slots_.size() || slots_[ref.slot].generation != ref.generation) return nullptr;
  return slots_[ref.slot].state == SlotState::kFree ? nullptr : &slots_[ref.slot];
}

std::uint64_t ReadSlots::count(SlotState state) const {
  return static_cast<std::uint64_t>(std::count_if(
      slots_.begin(), slots_.end(), [&](const ReadSlot& slot) { return slot.state == state; }));
}

}  // namespace millrace::storage::fetch
