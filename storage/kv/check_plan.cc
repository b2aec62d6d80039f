#include "storage/kv/check_plan.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::storage::kv {

std::vector<std::uint32_t> CheckPlan::next() const {
  return low_ < high_ ? search_keys() : confirm_keys();
}

std::vector<std::uint32_t> CheckPlan::search_keys() const {
  // One of high - low + 1 counts is the answer; knowing block i tells those above i from the rest.
  const std::size_t candidates = high_ - low_ + 1;
  const std::size_t asked = std::min(kKeysPerRound, candidates - 1);
  std::vector<std::uint32_t> keys;
  keys.reserve(asked);
  for (std::size_t i = 1; i <= asked; ++i)
    keys.push_back(static_cast<std::uint32_t>(low_ + i * candidates / (asked + 1) - 1));
  return keys;
}

std::vector<std::uint32_t> CheckPlan::confirm_keys() const {
  std::vector<std::uint32_t> keys;
  if (is_confirmed_) return keys;
  const std::size_t first = low_ - std::min(low_, kConfirmedBlocks);
  for (std::size_t i = first; i < low_; ++i) {
    const auto index = static_cast<std::uint32_t>(i);
    if (!was_seen(index)) keys.push_back(index);
  }
  return keys;
}

bool CheckPlan::was_seen(std::uint32_t index) const {
  return std::find(seen_present_.begin(), seen_present_.end(), index) != seen_present_.end();
}

void CheckPlan::answer(const std::vector<bool>& present) {
  const std::vector<std::uint32_t> keys = next();
  CHECK(!keys.empty() && present.size() == keys.size());
  ++rounds_;
  const auto absent = std::find(present.begin(), present.end(), false);
  const auto before = static_cast<std::size_t>(absent - present.begin());
  // What exists behind a block that is absent is of no use: the first absent one decides.
  for (std::size_t i = 0; i < before; ++i) seen_present_.push_back(keys[i]);
  if (low_ < high_) {
    if (before > 0) low_ = keys[before - 1] + 1;
    if (absent != present.end()) high_ = keys[before];
    return;
  }
  // A block that went between two rounds shortens the answer; blocks behind it, present or not, are
  // of no use. Not confirmed once more: the number of rounds is part of the promise.
  if (absent != present.end()) low_ = high_ = keys[before];
  is_confirmed_ = true;
}

}  // namespace millrace::storage::kv
