#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "dataplane/cost/fit.h"
#include "dataplane/engine/engine.h"

namespace millrace::dataplane::fit {

/// What is measured, and for how long.
struct MeasurePlan {
  double seconds = 60;      ///< two thirds for prefill, the rest for decode
  int max_context = 4096;   ///< tokens of the longest prompt and of the longest decode context
  int max_step_rows = 256;  ///< of the engine: the largest chunk
  int max_batch = 32;       ///< decoding sequences of one step, at most max_step_rows
  std::uint64_t seed = 1;   ///< of lengths and tokens
};

/// kInvalidArgument names the value that makes no sense.
absl::Status check(const MeasurePlan& plan);

/// A prefill step for people: its largest chunk, beside what the fit is made of.
struct MeasuredPrefill {
  std::int64_t rows = 0;
  std::int64_t cached = 0;
  cost::PrefillSample sample;
};

struct Measured {
  std::vector<MeasuredPrefill> prefill;
  std::vector<cost::DecodeSample> decode;
};

/// What the measurement has of its surroundings.
struct MeasureShell {
  std::function<double()> now_ns;        ///< a monotonic clock
  std::function<void(double)> progress;  ///< hears the share that is done, now and then
};

/// Runs an idle engine through steps as requests make them (prompts of log-uniform length in whole
/// and in cut chunks, one or two of them in a step; then decode steps of random subsets of
/// sequences with contexts of log-uniform length). Leaves nothing behind in the engine.
absl::StatusOr<Measured> measure_costs(engine::Engine& engine, const MeasurePlan& plan,
                                       const MeasureShell& shell);

/// A model, and how well it predicts steps that it has not seen (every fourth is held out).
template <typename Fit>
struct JudgedFit {
  Fit fit;
  int held_out = 0;
  double held_out_error = 0;  ///< mean of |predicted − measured| ÷ measured
};

absl::StatusOr<JudgedFit<cost::PrefillFit>> judge_prefill(const Measured& measured);
absl::StatusOr<JudgedFit<cost::DecodeFit>> judge_decode(const Measured& measured);

}  // namespace millrace::dataplane::fit
