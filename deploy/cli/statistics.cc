#include "deploy/cli/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/check.h"

namespace millrace::deploy::cli {

double percentile(std::span<const double> sorted, double fraction) {
  CHECK(!sorted.empty() && fraction > 0 && fraction <= 1);
  const auto rank =
      static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(sorted.size()) - 1e-9));
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

Summary summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {.count = static_cast<int>(values.size()),
          .mean = sum / static_cast<double>(values.size()),
          .p50 = percentile(values, 0.50),
          .p90 = percentile(values, 0.90),
          .p99 = percentile(values, 0.99),
          .max = values.back()};
}

Interval wilson_interval(int successes, int total) {
  if (total <= 0) return {0, 1};
  constexpr double kZ = 1.959963984540054;  // the normal distribution's 97.5 % quantile
  const double n = total;
  const double p = successes / n;
  const double scale = 1 + kZ * kZ / n;
  const double centre = (p + kZ * kZ / (2 * n)) / scale;
  const double half = kZ * std::sqrt(p * (1 - p) / n + kZ * kZ / (4 * n * n)) / scale;
  // At the ends the bounds are 0 and 1 exactly, which rounding would miss.
  return {successes == 0 ? 0.0 : centre - half, successes == total ? 1.0 : centre + half};
}

}  // namespace millrace::deploy::cli
