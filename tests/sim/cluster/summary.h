#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/cluster/simulate_cluster.h"

namespace millrace::sim {

struct Quantiles {
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double max = 0;
  double mean = 0;
};

/// Nearest rank; all 0 without values.
Quantiles quantiles_of(std::vector<double> values);

/// The headlines of a run, over the requests that arrived between warm-up and horizon. Requests
/// without a first token count with the time they have waited when the run ended.
struct Summary {
  std::string policy;
  std::int64_t requests = 0;
  double offered_per_s = 0;
  Quantiles ttft_s;
  Quantiles tpot_ms;
  double within_limits = 0;  ///< share that met both limits
  double goodput_per_s = 0;  ///< of those
  double served_per_s = 0;   ///< first tokens between warm-up and horizon, whenever they arrived
  double prefill_max_over_mean = 1;
  double decode_max_over_mean = 1;
  double prefill_utilisation = 0;
  double decode_utilisation = 0;
  std::array<std::int64_t, dataplane::routing::kBucketCount> bucket_requests{};
  std::array<Quantiles, dataplane::routing::kBucketCount> bucket_ttft_s;
  std::int64_t rerouted = 0;
  std::int64_t unfinished = 0;
  std::int64_t claims_gone = 0;
  double simulated_per_minute = 0;  ///< requests a minute of real time
};

Summary summarize(const Scenario& scenario, const ClusterOutcome& outcome);

/// A table for a terminal, one line a policy.
std::string to_table(const Scenario& scenario, std::span<const Summary> summaries);
/// The same as Markdown.
std::string to_markdown(std::span<const Summary> summaries);
/// One JSON object with everything of the summaries, and the scenario's name.
std::string to_json(const Scenario& scenario, std::uint64_t seed,
                    std::span<const Summary> summaries);

/// A run and its headlines, for the report.
struct ReportedRun {
  Summary summary;
  ClusterOutcome outcome;
};

/// One self-contained HTML page: the table, distributions of TTFT and TPOT, requests waiting over
/// time. Loads nothing from anywhere.
std::string to_html(const Scenario& scenario, std::uint64_t seed,
                    std::span<const ReportedRun> runs);

}  // namespace millrace::sim
