#pragma once

#include <algorithm>

namespace millrace::dataplane::kv {

/// Slots of a ring beyond the window: one verification step commits at most 6 rows, and the rows
/// that it may have to take back must not have pushed out a row that is needed again.
inline constexpr int kRingExtraSlots = 6;

/// Where the window latents of one sequence and layer lie: slot = position % slots, positions
/// absolute.
struct RingGeometry {
  int window = 0;

  int slots() const { return window + kRingExtraSlots; }
  int slot(int position) const { return position % slots(); }
  /// First position a query may see; floor is the lowest position that was computed.
  int first_visible(int position, int floor) const {
    return std::max(floor, position - window + 1);
  }
};

}  // namespace millrace::dataplane::kv
