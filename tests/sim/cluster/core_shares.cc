#include "tests/sim/cluster/core_shares.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::sim {

CoreShares::CoreShares(std::size_t instances, std::int64_t per_core)
    : per_core_(static_cast<std::size_t>(per_core)),
      cores_((instances + per_core_ - 1) / per_core_),
      left_(instances, -1) {}

std::span<const CoreShares::End> CoreShares::begin(std::size_t instance, SimTime alone,
                                                   SimTime now) {
  CHECK(left_[instance] < 0);
  const std::size_t core = instance / per_core_;
  advance(core, now);
  left_[instance] = alone;
  ++cores_[core].running;
  return ends_on(core, now);
}

std::span<const CoreShares::End> CoreShares::end(std::size_t instance, SimTime now) {
  if (left_[instance] < 0) return {};
  const std::size_t core = instance / per_core_;
  advance(core, now);
  left_[instance] = -1;
  --cores_[core].running;
  return ends_on(core, now);
}

void CoreShares::advance(std::size_t core, SimTime now) {
  Core& state = cores_[core];
  const SimTime elapsed = now - state.since;
  state.since = now;
  if (state.running == 0) return;
  const std::size_t last = std::min((core + 1) * per_core_, left_.size());
  for (std::size_t i = core * per_core_; i < last; ++i) {
    if (left_[i] >= 0) left_[i] = std::max<SimTime>(left_[i] - elapsed / state.running, 0);
  }
}

std::span<const CoreShares::End> CoreShares::ends_on(std::size_t core, SimTime now) {
  ends_.clear();
  const std::size_t last = std::min((core + 1) * per_core_, left_.size());
  for (std::size_t i = core * per_core_; i < last; ++i) {
    if (left_[i] >= 0) ends_.push_back({i, now + left_[i] * cores_[core].running});
  }
  return ends_;
}

}  // namespace millrace::sim
