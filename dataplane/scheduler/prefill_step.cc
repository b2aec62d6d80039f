#include "dataplane/scheduler/prefill_step.h"

#include <algorithm>
#include <cmath>

#include "common/str_cat.h"

namespace millrace::dataplane::scheduler {
namespace {

/// What is left of a step.
struct Room {
  double budget_ns = 0;
  std::int64_t rows = 0;

  void take(const PrefillChunk& chunk) {
    budget_ns -= chunk.cost_ns;
    rows -= chunk.rows;
  }
};

PrefillChunk chunk_of(const cost::CostModel& model, const QueuedPrefill& request, std::size_t index,
                      std::int64_t rows) {
  const cost::Chunk chunk = cost::chunk_at(rows, request.cached, request.prompt_tokens);
  return {index, rows, cost::chunk_cost_ns(model, chunk)};
}

PrefillChunk largest_that_fits(const cost::CostModel& model, const QueuedPrefill& request,
                               std::size_t index, const Room& room) {
  return chunk_of(model, request, index,
                  cost::largest_chunk(model, std::min(room.rows, request.rows_left), request.cached,
                                      request.prompt_tokens, room.budget_ns));
}

/// Gives what is left to the requests that were cut, the earliest first.
void fill(const cost::CostModel& model, std::span<const QueuedPrefill> queue, Room room,
          std::vector<PrefillChunk>& chunks) {
  for (PrefillChunk& chunk : chunks) {
    if (chunk.rows == queue[chunk.index].rows_left) continue;
    const Room with_own{room.budget_ns + chunk.cost_ns, room.rows + chunk.rows};
    const PrefillChunk larger = largest_that_fits(model, queue[chunk.index], chunk.index, with_own);
    if (larger.rows <= chunk.rows) continue;
    room = with_own;
    room.take(larger);
    chunk = larger;
  }
}

}  // namespace

absl::Status check(const PrefillStepLimits& limits) {
  if (!std::isfinite(limits.budget_ns) || limits.budget_ns <= 0) {
    return absl::InvalidArgumentError(
        str_cat("step budget = ", limits.budget_ns, " ns; it must be finite and above 0"));
  }
  if (!(limits.share_cap > 0 && limits.share_cap <= 1)) {
    return absl::InvalidArgumentError(
        str_cat("share cap = ", limits.share_cap, "; it must be above 0 and at most 1"));
  }
  if (limits.max_rows < 1) {
    return absl::InvalidArgumentError(
        str_cat("rows of a step = ", limits.max_rows, "; at least 1 must fit"));
  }
  return absl::OkStatus();
}

std::vector<PrefillChunk> plan_prefill_step(const cost::CostModel& model,
                                            const PrefillStepLimits& limits,
                                            std::span<const QueuedPrefill> queue) {
  std::vector<PrefillChunk> chunks;
  const double share_ns = limits.share_cap * limits.budget_ns;
  Room room{limits.budget_ns, limits.max_rows};
  std::size_t head = queue.size();
  for (std::size_t i = 0; i < queue.size(); ++i) {
    if (!queue[i].is_ready) continue;
    head = std::min(head, i);
    const bool is_capped = share_ns < room.budget_ns;
    const PrefillChunk chunk =
        largest_that_fits(model, queue[i], i, {is_capped ? share_ns : room.budget_ns, room.rows});
    if (chunk.rows > 0) chunks.push_back(chunk);
    room.take(chunk);
    if (chunk.rows < queue[i].rows_left && (!is_capped || room.rows <= 0)) break;
  }
  fill(model, queue, room, chunks);
  if (chunks.empty() && head < queue.size()) {
    const std::int64_t rows = std::min({kLeastChunkRows, queue[head].rows_left, limits.max_rows});
    chunks.push_back(chunk_of(model, queue[head], head, rows));
  }
  return chunks;
}

}  // namespace millrace::dataplane::scheduler
