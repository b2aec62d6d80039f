#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "dataplane/cost/cost_model.h"

namespace millrace::api::admin {

/// What a prefill worker says that its own steps cost.
struct WorkerCost {
  std::string worker_id;
  std::uint64_t incarnation = 0;  ///< of its process
  dataplane::cost::CostModel cost;

  friend bool operator==(const WorkerCost&, const WorkerCost&) = default;
};

inline constexpr std::uint64_t kDemandModulusNs = std::uint64_t{1} << 53;

/// What an entrypoint tells the controller of the demand it sees, every second or so
/// (POST /api/v1/entrypoints/ID/report). Demand counts from the start of the process, so that a
/// report that is lost, late or doubled leaves nothing out and counts nothing twice.
struct EntrypointReport {
  std::uint64_t incarnation = 0;  ///< of the process; a new one begins to count anew
  std::uint64_t sequence = 0;     ///< rises within an incarnation, from 1
  /// Predicted compute of the requests that came, in nanoseconds, by bucket. A cluster's compute
  /// passes 2^53 ns within days, above which JSON numbers are not exact: to_json writes the sums
  /// modulo kDemandModulusNs, and who takes differences does so modulo it.
  std::vector<std::uint64_t> demand_ns;
  std::vector<WorkerCost> costs;  ///< of the workers that it is connected to and that know theirs

  friend bool operator==(const EntrypointReport&, const EntrypointReport&) = default;
};

std::string to_json(const EntrypointReport& report);
/// kInvalidArgument names the value: negative or infinite costs, too many buckets or workers.
absl::StatusOr<EntrypointReport> parse_entrypoint_report(std::string_view json);

}  // namespace millrace::api::admin
