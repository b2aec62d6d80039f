#include "storage/node/slot_table.h"

#include <bit>

#include "common/check.h"

namespace millrace::storage::node {
namespace {

constexpr std::uint64_t kBits = 64;

}  // namespace

SlotTable::SlotTable(std::uint64_t slot_count)
    : slot_count_(slot_count),
      free_bits_((slot_count + kBits - 1) / kBits, ~std::uint64_t{0}),
      free_count_(slot_count) {
  const std::uint64_t tail = slot_count % kBits;
  if (tail != 0) free_bits_.back() = (std::uint64_t{1} << tail) - 1;
}

bool SlotTable::is_free(std::uint64_t slot) const {
  CHECK(slot < slot_count_);
  return (free_bits_[slot / kBits] >> (slot % kBits) & 1) != 0;
}

void SlotTable::set_free(std::uint64_t slot, bool free) {
  CHECK(is_free(slot) != free, "a slot changes its state");
  free_bits_[slot / kBits] ^= std::uint64_t{1} << (slot % kBits);
  if (free) {
    ++free_count_;
  } else {
    --free_count_;
  }
}

bool SlotTable::mark_used(std::uint64_t slot) {
  if (slot >= slot_count_ || !is_free(slot)) return false;
  set_free(slot, false);
  return true;
}

std::optional<std::uint64_t> SlotTable::take() {
  if (free_count_ == 0) return std::nullopt;
  // The low bits of a word before the one just taken are found one round later.
  while (free_bits_[next_word_] == 0) next_word_ = (next_word_ + 1) % free_bits_.size();
  const auto bit = static_cast<std::uint64_t>(std::countr_zero(free_bits_[next_word_]));
  const std::uint64_t slot = next_word_ * kBits + bit;
  set_free(slot, false);
  next_word_ = (next_word_ + 1) % free_bits_.size();
  return slot;
}

void SlotTable::put_back(std::uint64_t slot) { set_free(slot, true); }

void SlotTable::condemn(std::uint64_t slot) {
  CHECK(!is_free(slot));
  ++bad_count_;
}

void SlotTable::cool(std::uint64_t slot, TimePoint not_before) {
  CHECK(!is_free(slot));
  cooling_.push_back({not_before, slot});
}

void SlotTable::pin(std::uint64_t slot) { ++pins_[slot]; }

void SlotTable::unpin(std::uint64_t slot) {
  const auto found = pins_.find(slot);
  CHECK(found != pins_.end());
  if (--found->second == 0) pins_.erase(found);
}

void SlotTable::reclaim(TimePoint now) {
  const std::size_t due = cooling_.size();
  for (std::size_t i = 0; i < due && cooling_.front().not_before <= now; ++i) {
    const Cooling cooling = cooling_.front();
    cooling_.pop_front();
    if (pins_.count(cooling.slot) > 0) {
      cooling_.push_back({now, cooling.slot});  // a read hangs: look again at the next call
    } else {
      set_free(cooling.slot, true);
    }
  }
}

}  // namespace millrace::storage::node
