#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/sim/cluster/scenario.h"

namespace millrace::sim {

/// One request of a run.
struct Arrival {
  SimTime at = 0;
  std::int32_t input_tokens = 0;   ///< at least 1
  std::int32_t output_tokens = 0;  ///< at least 1
  std::int32_t cached_tokens = 0;  ///< stored KV that it hits; whole blocks of 128, below the input
  std::int32_t parent = -1;  ///< the earlier request of the run that made this KV last, if any
};

/// The requests of a scenario in the order of their arrival; equal seeds give equal ones. Fails as
/// `read_trace_rows` does; kInvalidArgument when there is none, or more than 2^30.
absl::StatusOr<std::vector<Arrival>> make_workload(const Scenario& scenario, std::uint64_t seed);

}  // namespace millrace::sim
