#pragma once

#include <cstdint>
#include <tuple>

#include "storage/kv/block_key.h"
#include "storage/kv/ttl_class.h"

namespace millrace::storage::kv {

/// What goes, when, in which order. Pure. Times are minutes of a target's own clock, which only
/// grows; no wall clock.

/// Time from the last touch to the end, by class.
struct TtlPolicy {
  std::uint32_t agent_minutes = 3 * 24 * 60;
  std::uint32_t chatbot_minutes = 7 * 24 * 60;

  std::uint32_t minutes(TtlClass ttl) const {
    return ttl == TtlClass::kChatbot ? chatbot_minutes : agent_minutes;
  }
};

/// A block that both kinds of traffic use lives as long as the longer of the two wants.
TtlClass longer_ttl(TtlClass a, TtlClass b, const TtlPolicy& policy = {});

/// Whether a block's time is over. A touch from the future (never seen from one clock) is fresh.
bool is_expired(std::uint32_t touch_minute, TtlClass ttl, std::uint32_t now_minute,
                const TtlPolicy& policy = {});

/// A block's place in the order of eviction.
struct EvictionAge {
  std::uint32_t touch_minute = 0;
  std::uint32_t depth = 0;  ///< of the block in its chain
  BlockKey key;
  bool operator==(const EvictionAge&) const = default;
};

/// The oldest minute first; within it the deepest first, for a block without those before it is of
/// no use; then by key, so that every node has the same order.
inline bool goes_before(const EvictionAge& a, const EvictionAge& b) {
  return std::tie(a.touch_minute, b.depth, a.key) < std::tie(b.touch_minute, a.depth, b.key);
}

/// Fractions of a target's slots.
struct Watermarks {
  double start = 0.90;      ///< above it eviction begins
  double stop = 0.85;       ///< and goes on down to here
  double emergency = 0.97;  ///< above it a node may drop its own shards, owner or not

  /// 0 < stop <= start <= emergency <= 1
  bool is_valid() const {
    return 0 < stop && stop <= start && start <= emergency && emergency <= 1;
  }
};

/// How many slots to free now: 0 up to the start mark, else down to the stop mark. `used_slots`
/// counts what is not yet reclaimed too, but not what is already on its way out
/// (`leaving_slots`, part of used_slots).
std::uint64_t slots_to_free(std::uint64_t used_slots, std::uint64_t leaving_slots,
                            std::uint64_t slot_count, const Watermarks& marks);

/// Whether a node must help itself.
bool is_emergency(std::uint64_t used_slots, std::uint64_t slot_count, const Watermarks& marks);

}  // namespace millrace::storage::kv
