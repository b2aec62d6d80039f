#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace millrace::dataplane::cost {

/// Predicted compute of a prefill chunk on one rank:
///
///   cost(q, c) = quadratic q² + cross q c + linear q + fixed    [nanoseconds]
///
/// q rows are run behind c rows whose KV is there already. All four are finite and at least 0, and
/// not all of them are 0, so that the cost never falls when q or c grows.
struct CostModel {
  double quadratic = 0;  ///< ns per row²: attention within the chunk
  double cross = 0;      ///< ns per row and cached row: attention to what came before
  double linear = 0;     ///< ns per row: everything that does not look back
  double fixed = 0;      ///< ns per chunk

  friend bool operator==(const CostModel&, const CostModel&) = default;
};

/// What prefill is taken to cost before anybody has measured it: 0.1 ms a row.
inline constexpr CostModel kUnmeasuredCost{.linear = 100'000};

/// kInvalidArgument names the coefficient that is no number, infinite or negative.
absl::Status check(const CostModel& model);

/// Nanoseconds of one chunk; 0 rows cost 0.
double chunk_cost_ns(const CostModel& model, std::int64_t rows, std::int64_t cached);

/// Nanoseconds of running `rows` rows behind `cached` ones in a single chunk, as an integer charge:
/// rounded up, at least 1 when there is a row, and saturated at 2^62.
std::int64_t quota_ns(const CostModel& model, std::int64_t rows, std::int64_t cached);

/// The largest chunk, at most `rows`, that costs no more than the budget behind `cached` rows; 0
/// when not even one row fits. The closed form is only a first guess: what is returned is judged by
/// chunk_cost_ns itself.
std::int64_t largest_chunk(const CostModel& model, std::int64_t rows, std::int64_t cached,
                           double budget_ns);

/// A decode step of one rank, of `batch` requests whose KV has `kv_tokens` rows together:
///
///   step = fixed + per_request batch + per_kv_token kv_tokens    [nanoseconds]
struct DecodeCostModel {
  double fixed = 0;
  double per_request = 0;
  double per_kv_token = 0;

  friend bool operator==(const DecodeCostModel&, const DecodeCostModel&) = default;
};

absl::Status check(const DecodeCostModel& model);

double decode_step_ns(const DecodeCostModel& model, std::int64_t batch, std::int64_t kv_tokens);

}  // namespace millrace::dataplane::cost
