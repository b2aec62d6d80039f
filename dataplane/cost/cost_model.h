#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace millrace::dataplane::cost {

/// Rows at the end of a prompt that pass the decoder layers, too: the window of the released model.
/// Of a model with another one the tail is costed as if it were this long.
inline constexpr std::int64_t kTailRows = 128;

/// Rows of one request that run in one step.
struct Chunk {
  std::int64_t rows = 0;
  std::int64_t cached = 0;  ///< rows before them whose KV is there already
  std::int64_t tail = 0;    ///< of `rows`: those that pass the decoder layers, too
};

/// `rows` rows behind `cached` ones of a request whose prompt has `prompt_tokens`. What comes after
/// the prompt (tokens that were delivered before a worker was lost) belongs to the tail.
constexpr Chunk chunk_at(std::int64_t rows, std::int64_t cached, std::int64_t prompt_tokens) {
  const std::int64_t before_tail = prompt_tokens - kTailRows - cached;
  return {rows, cached, rows - std::clamp<std::int64_t>(before_tail, 0, rows)};
}

/// Predicted compute of a chunk on one rank, of q rows behind c, t of the q in the tail:
///
///   cost = quadratic q² + cross q c + linear q + fixed + tail t + tail_cross t (c + q)    [ns]
///
/// All coefficients are finite and at least 0, and not all of them are 0, so that the cost never
/// falls when q or c grows.
struct CostModel {
  double quadratic = 0;   ///< ns per row²: attention within the chunk
  double cross = 0;       ///< ns per row and cached row: attention to what came before
  double linear = 0;      ///< ns per row: everything that does not look back
  double fixed = 0;       ///< ns per chunk
  double tail = 0;        ///< ns per row of the tail: the decoder layers
  double tail_cross = 0;  ///< ns per row of the tail and row up to it: their attention

  friend bool operator==(const CostModel&, const CostModel&) = default;
};

/// The name of each coefficient, and where it is: for what reads, writes and checks them all.
struct Coefficient {
  std::string_view name;
  double CostModel::*value;
};
inline constexpr std::array<Coefficient, 6> kCoefficients = {{
    {"quadratic", &CostModel::quadratic},
    {"cross", &CostModel::cross},
    {"linear", &CostModel::linear},
    {"fixed", &CostModel::fixed},
    {"tail", &CostModel::tail},
    {"tail_cross", &CostModel::tail_cross},
}};

/// What prefill is taken to cost before anybody has measured it: 0.1 ms a row.
inline constexpr CostModel kUnmeasuredCost{.linear = 100'000};

/// kInvalidArgument names the coefficient that is no number, infinite or negative.
absl::Status check(const CostModel& model);

/// Nanoseconds of one chunk; 0 rows cost 0.
double chunk_cost_ns(const CostModel& model, const Chunk& chunk);

/// The cost of a chunk as an integer charge: rounded up, at least 1 when there is a row, and
/// saturated at 2^62.
std::int64_t quota_ns(const CostModel& model, const Chunk& chunk);

/// The rows of the largest chunk_at(), at most `most`, that costs no more than the budget; 0 when
/// not even one row fits. The closed form is only a first guess: what is returned is judged by
/// chunk_cost_ns itself.
std::int64_t largest_chunk(const CostModel& model, std::int64_t most, std::int64_t cached,
                           std::int64_t prompt_tokens, double budget_ns);

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
