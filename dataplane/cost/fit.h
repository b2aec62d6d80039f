#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dataplane/cost/cost_model.h"

namespace millrace::dataplane::cost {

/// A prefill step as it was measured. The cost of a step is the sum of the costs of its chunks, so
/// that only these sums matter.
struct PrefillSample {
  double rows_squared = 0;    ///< Σ q²
  double rows_by_cached = 0;  ///< Σ q c
  double rows = 0;            ///< Σ q
  double chunks = 0;
  double tail = 0;            ///< Σ t
  double tail_by_length = 0;  ///< Σ t (c + q)
  double ns = 0;              ///< how long the step took

  void add(const Chunk& chunk);
};

/// A decode step as it was measured.
struct DecodeSample {
  double batch = 0;
  double kv_tokens = 0;
  double ns = 0;
};

/// What the model predicts for a step of these sums, in ns.
double predicted_ns(const CostModel& model, const PrefillSample& step);
double predicted_ns(const DecodeCostModel& model, const DecodeSample& step);

/// How well a model describes the samples it was made of.
struct FitQuality {
  int used = 0;
  int rejected = 0;                ///< as outliers
  double mean_relative_error = 0;  ///< of the used ones: |predicted − measured| ÷ measured
  double worst_relative_error = 0;
  /// Coefficients that are 0: they would be negative, or the samples cannot tell them from others.
  std::vector<std::string> left_out;
};

struct PrefillFit {
  CostModel model;
  FitQuality quality;
};

struct DecodeFit {
  DecodeCostModel model;
  FitQuality quality;
};

/// The least samples that a fit accepts.
inline constexpr int kMinFitSamples = 8;

/// Least squares of the relative error under coefficients of at least 0, repeated without what lies
/// far from the rest (stalls of the machine) until nothing does.
///
/// Samples that cannot tell two coefficients apart (all of one shape) are no error: the model then
/// has the fewest terms that describe them, and predicts well where they lie. kInvalidArgument
/// names the sample that is no number, negative, or of a step that took no time;
/// kFailedPrecondition: fewer than kMinFitSamples samples.
absl::StatusOr<PrefillFit> fit_prefill(std::span<const PrefillSample> samples);
absl::StatusOr<DecodeFit> fit_decode(std::span<const DecodeSample> samples);

/// Mean of |predicted − measured| ÷ measured over samples that the model was not made of.
double mean_relative_error(const CostModel& model, std::span<const PrefillSample> samples);
double mean_relative_error(const DecodeCostModel& model, std::span<const DecodeSample> samples);

}  // namespace millrace::dataplane::cost
