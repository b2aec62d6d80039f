// millrace-placement-bench: what a plan of all layers costs on one core. One JSON object a line:
// from the identity placement, then twice from the plan before while loads drift.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "controller/placement/plain.h"
#include "controller/placement/plan.h"
#include "tests/bench/stopwatch.h"

namespace millrace::tests::bench {
namespace {

namespace placement = controller::placement;

constexpr int kLayers = 61;
constexpr int kExperts = 384;

/// Shuffled Zipf of exponent 1, another shuffle in each layer.
placement::ExpertLoads skewed_loads(std::mt19937& random) {
  placement::ExpertLoads loads{kLayers, kExperts, {}};
  std::vector<double> layer(kExperts);
  for (int layer_index = 0; layer_index < kLayers; ++layer_index) {
    for (std::size_t k = 0; k < layer.size(); ++k) layer[k] = 1e6 / static_cast<double>(k + 1);
    std::shuffle(layer.begin(), layer.end(), random);
    loads.counts.insert(loads.counts.end(), layer.begin(), layer.end());
  }
  return loads;
}

absl::Status measure(int ranks, placement::PlannerSettings settings) {
  ASSIGN_OR_RETURN(const int slots,
                   placement::slots_per_rank(kExperts, ranks, settings.redundant_per_rank,
                                             placement::kMaxCount));
  const placement::ExpertShape shape{kLayers, kExperts, ranks, slots};
  std::mt19937 random(1);  // NOLINT: the same work in every run
  std::normal_distribution<double> drift(0.0, 0.2);
  placement::ExpertLoads loads = skewed_loads(random);
  placement::Placement current = placement::identity_placement(shape);
  for (int round = 0; round < 3; ++round) {
    const Stopwatch ours(ClockKind::kCpu);
    ASSIGN_OR_RETURN(const placement::Plan plan,
                     placement::plan_experts(shape, settings, loads, current));
    const double ours_ms = ours.seconds() * 1e3;
    double worst = 1.0;
    for (const placement::LayerPlan& layer : plan.layers) {
      worst = std::max(worst, layer.imbalance_after);
    }
    const Stopwatch plain(ClockKind::kCpu);
    double plain_worst = 1.0;
    for (int layer = 0; layer < kLayers; ++layer) {
      ASSIGN_OR_RETURN(
          const std::vector<int> planned,
          placement::plain_plan(loads.layer(layer), {shape.slot_count(), 1, 1, ranks}));
      plain_worst =
          std::max(plain_worst, placement::imbalance_of(loads.layer(layer), planned, ranks));
    }
    std::printf(
        "{\"ranks\": %d, \"balance_target\": %.4f, \"round\": %d, \"cpu_ms\": %.1f, \"moves\": %d, "
        "\"slots\": %d, \"worst\": %.5f, \"plain_cpu_ms\": %.1f, \"plain_worst\": %.5f}\n",
        ranks, settings.balance_target, round, ours_ms, plan.move_count(),
        kLayers * shape.slot_count(), worst, plain.seconds() * 1e3, plain_worst);
    current = plan.placement();
    for (double& load : loads.counts) load *= std::exp(drift(random));
  }
  return absl::OkStatus();
}

absl::Status measure_all() {
  placement::PlannerSettings eager = placement::kDecodeSettings;
  eager.balance_target = 1.0;
  for (const auto& [ranks, settings] :
       {std::pair(2, placement::kPrefillSettings), std::pair(8, placement::kPrefillSettings),
        std::pair(64, placement::kDecodeSettings), std::pair(64, eager),
        std::pair(144, placement::kDecodeSettings)}) {
    RETURN_IF_ERROR(measure(ranks, settings));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace::tests::bench

int main() {
  const absl::Status status = millrace::tests::bench::measure_all();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
