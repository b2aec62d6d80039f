#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "dataplane/cost/cost_model.h"

namespace millrace::dataplane::scheduler {

/// A request in the queue of a prefill rank.
struct QueuedPrefill {
  std::int64_t rows_left = 0;  ///< still to run, at least 1
  std::int64_t cached = 0;     ///< rows before them whose KV is there: hits, and chunks that ran
  std::int64_t prompt_tokens;  ///< where its prompt ends, as cost::chunk_at() wants it
  bool is_ready = true;        ///< its stored KV was fetched, or its fetch deadline has passed
};

struct PrefillStepLimits {
  double budget_ns = 300e6;  ///< predicted compute of a step
  /// Share of the budget that one request may take while others are there to use the rest, so that
  /// one very long prompt does not keep a rank to itself. 1 = first in, first out.
  double share_cap = 1.0;
  std::int64_t max_rows = std::numeric_limits<std::int64_t>::max();  ///< of a step
};

/// kInvalidArgument names the limit that makes no sense: budget and rows above 0, a share in (0,
/// 1].
absl::Status check(const PrefillStepLimits& limits);

/// Rows of one request in a step.
struct PrefillChunk {
  std::size_t index = 0;  ///< in the queue
  std::int64_t rows = 0;
  double cost_ns = 0;  ///< predicted

  friend bool operator==(const PrefillChunk&, const PrefillChunk&) = default;
};

/// Rows of the head that run although they exceed the budget.
inline constexpr std::int64_t kLeastChunkRows = 128;

/// The next step of a prefill rank: requests in the order of the queue while their predicted cost
/// together stays within the budget. The first that does not fit is cut to the largest chunk that
/// does, and ends the step; one that reaches its share is cut there and the next ones follow, and
/// what they leave goes to those that were cut. Requests that are not ready are passed by.
///
/// If not even a row of the first ready request fits an empty step, min(128, what is left) of it
/// runs anyway: a step is empty only when no request is ready. The ranks of an instance meet after
/// each step, so equal budgets are what keeps them from waiting for each other (DualPath §6, arXiv
/// 2602.21548).
///
/// `queue` is in order of arrival; chunks come in that order. Reads no further than the first
/// request that does not fit.
std::vector<PrefillChunk> plan_prefill_step(const cost::CostModel& model,
                                            const PrefillStepLimits& limits,
                                            std::span<const QueuedPrefill> queue);

}  // namespace millrace::dataplane::scheduler
