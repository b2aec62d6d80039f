#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/sim/cluster/scenario.h"

namespace millrace::sim {

/// Steps of instances that share cores: of the n that run on a core at one time, each gets on at
/// 1/n of its speed, as under a fair scheduler whose turns are short beside steps.
class CoreShares {
 public:
  /// Instance i is on core i ÷ `per_core`.
  CoreShares(std::size_t instances, std::int64_t per_core);

  /// When a step ends, as far as is known now.
  struct End {
    std::size_t instance = 0;
    SimTime at = 0;
  };

  /// A step that takes `alone` by itself begins on an instance where none runs. The new ends of
  /// all steps on its core, by instance; valid until the next call.
  std::span<const End> begin(std::size_t instance, SimTime alone, SimTime now);
  /// The step of an instance is over or given up (nothing happens when none runs); as above.
  std::span<const End> end(std::size_t instance, SimTime now);

 private:
  /// Brings what is left of the steps on a core up to date.
  void advance(std::size_t core, SimTime now);
  std::span<const End> ends_on(std::size_t core, SimTime now);

  struct Core {
    SimTime since = 0;  // what is left was true then
    std::int64_t running = 0;
  };

  std::size_t per_core_;
  std::vector<Core> cores_;
  std::vector<SimTime> left_;  // of each instance's step by itself; −1 when none runs
  std::vector<End> ends_;
};

}  // namespace millrace::sim
