#include "storage/fetch/write_table.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::storage::fetch {

WriteTable::WriteTable(std::uint32_t slot_count) : slots_(slot_count) {
  for (std::uint32_t slot = 0; slot < slot_count; ++slot) free_.push_back(slot);
}

std::vector<SlotRef> WriteTable::reserve(SessionId session, std::uint32_t count,
                                         TimePoint expires_at) {
  std::vector<SlotRef> taken;
  taken.reserve(std::min<std::size_t>(count, free_.size()));
  while (taken.size() < count && !free_.empty()) {
    const std::uint32_t slot = free_.front();
    free_.pop_front();
    slots_[slot] = {.state = SlotState::kWriting,
                    .generation = slots_[slot].generation + 1,
                    .session = session};
    taken.push_back({slot, slots_[slot].generation});
    expiries_.push_back({expires_at, taken.back()});
  }
  return taken;
}

const WriteTable::Slot* WriteTable::find_use(const SlotRef& ref, SlotState state) const {
  if (ref.slot >= slots_.size()) return nullptr;
  const Slot& slot = slots_[ref.slot];
  return slot.generation == ref.generation && slot.state == state ? &slot : nullptr;
}

bool WriteTable::is_reserved(const SlotRef& ref, SessionId session) const {
  const Slot* slot = find_use(ref, SlotState::kWriting);
  return slot != nullptr && slot->session == session;
}

void WriteTable::seal(const SlotRef& ref) {
  CHECK(find_use(ref, SlotState::kWriting) != nullptr);
  slots_[ref.slot].state = SlotState::kSealed;
}

std::optional<SessionId> WriteTable::sealed_by(const SlotRef& ref) const {
  const Slot* slot = find_use(ref, SlotState::kSealed);
  if (slot == nullptr) return std::nullopt;
  return slot->session;
}

void WriteTable::give_back(const SlotRef& ref) {
  CHECK(slots_[ref.slot].generation == ref.generation &&
        slots_[ref.slot].state != SlotState::kFree);
  slots_[ref.slot].state = SlotState::kFree;
  free_.push_back(ref.slot);
}

std::vector<SlotRef> WriteTable::reserved_by(SessionId session) const {
  std::vector<SlotRef> refs;
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
    const SlotRef ref{slot, slots_[slot].generation};
    if (is_reserved(ref, session)) refs.push_back(ref);
  }
  return refs;
}

std::optional<SlotRef> WriteTable::overdue(TimePoint now) {
  while (!expiries_.empty()) {
    const Expiry& first = expiries_.front();
    const bool is_over = find_use(first.ref, SlotState::kWriting) == nullptr;
    if (!is_over) {
      if (first.at > now) return std::nullopt;
      return first.ref;
    }
    expiries_.pop_front();
  }
  return std::nullopt;
}

std::optional<TimePoint> WriteTable::next_expiry() const {
  if (expiries_.empty()) return std::nullopt;
  return expiries_.front().at;
}

std::uint64_t WriteTable::count(SlotState state) const {
  return static_cast<std::uint64_t>(std::count_if(
      slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.state == state; }));
}

}  // namespace millrace::storage::fetch
