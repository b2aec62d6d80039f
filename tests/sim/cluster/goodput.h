#pragma once

#include <functional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "tests/sim/cluster/summary.h"

namespace millrace::sim {

/// The highest load at which enough requests met both limits.
struct Goodput {
  double factor = 0;  ///< of the scenario's arrival rate; 0 = not even at a hundredth of it
  Summary summary;    ///< of the run at that load
};

/// Doubles or halves the load until the limits are between two, then halves the interval to within
/// 1 %. Between one run and a score of them. `tried` is told each load and its share of requests
/// within limits; it may be empty. Fails as `make_workload` does.
absl::StatusOr<Goodput> find_goodput(const Scenario& scenario, const PolicyChoice& policy,
                                     std::uint64_t seed,
                                     const std::function<void(double, double)>& tried = {});

/// As summary.h has them.
std::string to_table(const Scenario& scenario, std::span<const Goodput> found);
std::string to_json(const Scenario& scenario, std::uint64_t seed, std::span<const Goodput> found);

}  // namespace millrace::sim
