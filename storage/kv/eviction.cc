#include "storage/kv/eviction.h"

#include <algorithm>

namespace millrace::storage::kv {
namespace {

double mark_slots(double fraction, std::uint64_t slot_count) {
  return fraction * static_cast<double>(slot_count);
}

}  // namespace

TtlClass longer_ttl(TtlClass a, TtlClass b, const TtlPolicy& policy) {
  return policy.minutes(a) < policy.minutes(b) ? b : a;
}

bool is_expired(std::uint32_t touch_minute, TtlClass ttl, std::uint32_t now_minute,
                const TtlPolicy& policy) {
  return now_minute > touch_minute && now_minute - touch_minute >= policy.minutes(ttl);
}

std::uint64_t slots_to_free(std::uint64_t used_slots, std::uint64_t leaving_slots,
                            std::uint64_t slot_count, const Watermarks& marks) {
  // Beginning looks at everything used, so that slow reclaiming does not postpone it; ending looks
  // at what will be left, so that it frees nothing twice.
  if (static_cast<double>(used_slots) <= mark_slots(marks.start, slot_count)) return 0;
  const auto target = static_cast<std::uint64_t>(mark_slots(marks.stop, slot_count));
  const std::uint64_t staying = used_slots - std::min(used_slots, leaving_slots);
  return staying - std::min(staying, target);
}

bool is_emergency(std::uint64_t used_slots, std::uint64_t slot_count, const Watermarks& marks) {
  return static_cast<double>(used_slots) > mark_slots(marks.emergency, slot_count);
}

}  // namespace millrace::storage::kv
