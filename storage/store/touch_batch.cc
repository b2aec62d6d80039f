#include "storage/store/touch_batch.h"

#include <algorithm>

namespace millrace::storage::store {
namespace {

constexpr std::size_t kFilterSlots = 1 << 16;
constexpr std::chrono::minutes kTouchInterval{1};

}  // namespace

TouchFilter::TouchFilter() : slots_(kFilterSlots) {}

bool TouchFilter::passes(const BlockKey& key, TtlClass ttl, TimePoint now) {
  // The key's bytes are uniform. Other bytes choose the slot than those that are compared, which
  // together with the slot make 80 bits.
  const std::uint64_t prefix = key.prefix();
  const std::size_t index = key.bytes[8] | static_cast<std::size_t>(key.bytes[9]) << 8;
  Slot& slot = slots_[index];
  if (slot.is_used && slot.prefix == prefix && now - slot.at < kTouchInterval && ttl <= slot.ttl)
    return false;
  slot = {.prefix = prefix, .at = now, .ttl = ttl, .is_used = true};
  return true;
}

void TouchBatch::add(const TouchBlocks& touch, TimePoint now) {
  if (context_.map == nullptr || context_.map->groups.empty()) {
    context_.counters.dropped_touches += touch.keys.size();
    return;
  }
  for (const BlockKey& key : touch.keys) {
    if (waiting_keys_ >= context_.settings.max_waiting_touches) {
      ++context_.counters.dropped_touches;
      continue;
    }
    if (!filter_.passes(key, touch.ttl, now)) continue;
    ++context_.counters.touched_keys;
    ++waiting_keys_;
    for (const Member& member : group_of(*context_.map, key).members) {
      if (member.state != MemberState::kDown)
        waiting_[{member.target_id, touch.ttl}].push_back(key);
    }
  }
  if (waiting_keys_ == 0 || is_timed_) return;
  is_timed_ = true;
  context_.set_timer(now + context_.settings.touch_delay, TimerKind::kTouch, 0);
}

void TouchBatch::flush(TimePoint now) {
  is_timed_ = false;
  waiting_keys_ = 0;
  for (const auto& [destination, keys] : waiting_) {
    for (std::size_t begin = 0; begin < keys.size(); begin += kMaxKeysPerRequest) {
      const std::size_t end = std::min(keys.size(), begin + kMaxKeysPerRequest);
      context_.send_errand(*context_.map, destination.first,
                           TouchKeys{.keys = {keys.begin() + static_cast<std::ptrdiff_t>(begin),
                                              keys.begin() + static_cast<std::ptrdiff_t>(end)},
                                     .ttl = destination.second},
                           now);
    }
  }
  waiting_.clear();
}

}  // namespace millrace::storage::store
