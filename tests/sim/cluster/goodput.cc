#include "tests/sim/cluster/goodput.h"

#include <vector>

#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::sim {
namespace {

constexpr double kPrecision = 0.01;
constexpr double kSmallest = 0.01;
constexpr double kLargest = 100;

}  // namespace

absl::StatusOr<Goodput> find_goodput(const Scenario& scenario, const PolicyChoice& policy,
                                     std::uint64_t seed,
                                     const std::function<void(double, double)>& tried) {
  Goodput best;
  best.summary.policy = policy.name();
  const auto is_met = [&](double factor) -> absl::StatusOr<bool> {
    const Scenario scaled = scale_load(scenario, factor);
    ASSIGN_OR_RETURN(const auto arrivals, make_workload(scaled, seed));
    Summary summary = summarize(scaled, simulate_cluster(scaled, policy, arrivals, seed));
    if (tried) tried(factor, summary.within_limits);
    const bool is_enough = summary.within_limits >= scenario.limit_share;
    if (is_enough && factor > best.factor) best = {factor, std::move(summary)};
    return is_enough;
  };
  double good = 0;
  double bad = 0;
  double factor = 1;
  while (good == 0 || bad == 0) {
    ASSIGN_OR_RETURN(const bool is_enough, is_met(factor));
    (is_enough ? good : bad) = factor;
    if (bad == 0) factor *= 1.25;
    if (good == 0) factor *= 0.8;
    if (factor > kLargest || factor < kSmallest) return best;
  }
  while (bad - good > kPrecision * good) {
    const double middle = (good + bad) / 2;
    ASSIGN_OR_RETURN(const bool is_enough, is_met(middle));
    (is_enough ? good : bad) = middle;
  }
  return best;
}

std::string to_table(const Scenario& scenario, std::span<const Goodput> found) {
  std::vector<Summary> summaries;
  summaries.reserve(found.size());
  for (const Goodput& goodput : found) summaries.push_back(goodput.summary);
  std::string table = str_cat("highest load with ", 100 * scenario.limit_share,
                              " % of requests within limits\n", to_table(scenario, summaries));
  for (const Goodput& goodput : found) {
    table += str_cat(goodput.summary.policy, ": ", goodput.factor, " x the scenario's load\n");
  }
  return table;
}

std::string to_json(const Scenario& scenario, std::uint64_t seed, std::span<const Goodput> found) {
  Json policies = Json::array();
  for (const Goodput& goodput : found) {
    policies.push_back({{"policy", goodput.summary.policy},
                        {"load_factor", goodput.factor},
                        {"offered_per_s", goodput.summary.offered_per_s},
                        {"within_limits", goodput.summary.within_limits}});
  }
  const Json report = {{"scenario", scenario.name},
                       {"seed", seed},
                       {"limit_share", scenario.limit_share},
                       {"goodput", policies}};
  return str_cat(dump_json_pretty(report), "\n");
}

}  // namespace millrace::sim
