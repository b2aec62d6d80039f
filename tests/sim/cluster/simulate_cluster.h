#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dataplane/routing/buckets.h"
#include "tests/sim/cluster/scenario.h"
#include "tests/sim/cluster/workload.h"

namespace millrace::sim {

/// What became of one request.
struct RequestOutcome {
  SimTime arrived = 0;
  SimTime first_token = -1;  ///< at the entrypoint; −1 = never
  SimTime ended = -1;
  std::int32_t input_tokens = 0;
  std::int32_t output_tokens = 0;
  std::uint32_t attempts = 1;
  std::uint16_t entrypoint = 0;
  std::uint16_t times_ended = 0;  ///< anything but 1 at the end of a drained run is a bug

  double ttft_s() const { return static_cast<double>(first_token - arrived) * 1e-9; }
  /// Time per output token after the first; 0 for a single one.
  double tpot_ms() const {
    if (output_tokens < 2) return 0;
    return static_cast<double>(ended - first_token) * 1e-6 / (output_tokens - 1);
  }
};

/// How evenly ranks worked, and how much of the time.
struct FleetOutcome {
  /// Compute of the slowest rank ÷ of the mean rank, over all steps, weighted by their length.
  double max_over_mean = 1;
  double utilisation = 0;  ///< compute of all ranks ÷ (ranks × counted time)
  std::int64_t steps = 0;
};

struct Sample {
  double at_s = 0;
  std::int64_t waiting = 0;  ///< requests without their first token
  std::int64_t decoding = 0;
};

struct ClusterOutcome {
  std::string policy;
  std::vector<RequestOutcome> requests;
  FleetOutcome prefill;
  FleetOutcome decode;
  std::vector<Sample> samples;  ///< one a virtual second
  std::int64_t rerouted = 0;
  std::int64_t claims = 0;       ///< by pulling instances
  std::int64_t claims_gone = 0;  ///< of those, that found nothing any more
  std::int64_t fetch_timeouts = 0;
  std::int64_t charges_outstanding = 0;  ///< when the run ended
  std::int64_t unfinished = 0;           ///< requests, when the run ended
  std::int64_t events = 0;
  double wall_s = 0;  ///< real time the run took
};

/// Runs requests through a cluster. Pure but for the time it takes: equal arguments give equal
/// outcomes. `progress` is told the virtual time in seconds now and then; it may be empty.
ClusterOutcome simulate_cluster(const Scenario& scenario, const PolicyChoice& policy,
                                std::span<const Arrival> arrivals, std::uint64_t seed,
                                const std::function<void(double)>& progress = {});

}  // namespace millrace::sim
