#include "dataplane/cost/fit_window.h"

#include <algorithm>
#include <cmath>

namespace millrace::dataplane::cost {
namespace {

/// Durations below 2^kFirstExponent ns (66 µs) share the first stratum; the last begins at 2^39 ns.
constexpr int kFirstExponent = 16;

bool is_measurement(const PrefillSample& s) {
  for (const double term :
       {s.rows_squared, s.rows_by_cached, s.rows, s.chunks, s.tail, s.tail_by_length}) {
    if (!std::isfinite(term) || term < 0) return false;
  }
  return std::isfinite(s.ns) && s.ns > 0;
}

std::size_t stratum_of(double ns) {
  const int exponent = std::ilogb(ns) - kFirstExponent;
  return static_cast<std::size_t>(std::clamp(exponent, 0, FitWindow::kStrata - 1));
}

}  // namespace

FitWindow::FitWindow() : strata_(kStrata) {}

bool FitWindow::add(const PrefillSample& sample) {
  if (!is_measurement(sample)) return false;
  Stratum& stratum = strata_[stratum_of(sample.ns)];
  if (stratum.samples.size() < kSamplesPerStratum) {
    stratum.samples.push_back({++steps_, sample});
  } else {
    stratum.samples[stratum.next] = {++steps_, sample};
    stratum.next = (stratum.next + 1) % kSamplesPerStratum;
  }
  return true;
}

std::vector<PrefillSample> FitWindow::all() const {
  std::vector<PrefillSample> samples;
  samples.reserve(std::size_t{kStrata} * kSamplesPerStratum);
  for (const Stratum& stratum : strata_) {
    for (const Numbered& step : stratum.samples) {
      if (steps_ - step.number < kMaxAge) samples.push_back(step.sample);
    }
  }
  return samples;
}

absl::StatusOr<PrefillFit> FitWindow::refit() const { return fit_prefill(all()); }

bool FitWindow::is_better(const CostModel& in_use, const CostModel& refitted,
                          double least_gain) const {
  const std::vector<PrefillSample> samples = all();
  return mean_relative_error(refitted, samples) + least_gain <=
         mean_relative_error(in_use, samples);
}

}  // namespace millrace::dataplane::cost
