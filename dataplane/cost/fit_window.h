#pragma once

#include <cstdint>
#include <vector>

#include "dataplane/cost/fit.h"

namespace millrace::dataplane::cost {

/// The steps that an engine measured last, for refitting its model while it serves. One thread.
///
/// Bounded: kStrata × kSamplesPerStratum samples. A step goes to the stratum of its duration (by
/// powers of two) and replaces the oldest there, so that a long quiet time of short steps does not
/// wash out what the rare long ones showed. What is older than kMaxAge steps counts no more: the
/// machine it was measured on may have been a slower one.
class FitWindow {
 public:
  static constexpr int kStrata = 24;
  static constexpr int kSamplesPerStratum = 32;
  static constexpr std::uint64_t kMaxAge = 65536;

  FitWindow();

  /// A measurement that cannot be one (no number, negative, of no time) is dropped; false then.
  bool add(const PrefillSample& sample);

  int size() const { return static_cast<int>(all().size()); }

  /// A model of what the window holds; the errors of fit_prefill().
  absl::StatusOr<PrefillFit> refit() const;

  /// Whether the new model describes the window so much better than the one in use (mean relative
  /// error lower by at least `least_gain`) that others should learn it. Models that flutter cost
  /// everyone a change of quotas and improve nothing.
  bool is_better(const CostModel& in_use, const CostModel& refitted,
                 double least_gain = 0.03) const;

 private:
  struct Numbered {
    std::uint64_t number = 0;  // of the step, from 1
    PrefillSample sample;
  };
  struct Stratum {
    std::vector<Numbered> samples;  // a ring once it is full
    std::size_t next = 0;
  };

  std::vector<PrefillSample> all() const;

  std::vector<Stratum> strata_;
  std::uint64_t steps_ = 0;
};

}  // namespace millrace::dataplane::cost
