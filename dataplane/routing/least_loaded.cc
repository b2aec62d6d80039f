#include "dataplane/routing/least_loaded.h"

#include <tuple>
#include <vector>

#include "dataplane/routing/decode_rank.h"

namespace millrace::dataplane::routing {
namespace {

std::uint64_t requests_at(const WorkerSnapshot& worker) {
  return worker.running + worker.waiting + worker.charged_requests;
}

/// Tokens of a KV block.
constexpr std::int64_t kBlockTokens = 128;

std::uint64_t blocks_at(const WorkerSnapshot& worker) {
  return worker.kv_blocks_used + worker.charged_kv_blocks;
}

bool is_possible(const RequestSize& request, const WorkerSnapshot& worker) {
  return worker.is_accepting && request.kv_blocks <= worker.kv_blocks_total;
}

/// Room is counted in blocks, as the worker reserves them: without room for all that the request
/// may come to hold, there is none for its tokens.
DecodeRank to_rank(const RequestSize& request, const WorkerSnapshot& worker) {
  const auto total = static_cast<std::int64_t>(worker.kv_blocks_total);
  const auto used = static_cast<std::int64_t>(blocks_at(worker));
  const bool has_room = used + static_cast<std::int64_t>(request.kv_blocks) <= total;
  return {.requests = static_cast<std::int64_t>(requests_at(worker)),
          .kv_tokens = static_cast<std::int64_t>(worker.kv_tokens + worker.charged_tokens),
          .free_kv_tokens = has_room ? (total - used) * kBlockTokens : -1,
          .is_accepting = worker.is_accepting};
}

/// The first worker with the smallest score among those that could hold the request.
template <typename Score>
std::optional<std::size_t> pick(const RequestSize& request, std::span<const WorkerSnapshot> workers,
                                Score&& is_less) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (!is_possible(request, workers[i])) continue;
    if (!best || is_less(workers[i], workers[*best])) best = i;
  }
  return best;
}

}  // namespace

std::optional<std::size_t> pick_prefill_worker(const RequestSize& request,
                                               std::span<const WorkerSnapshot> workers) {
  return pick(request, workers, [](const WorkerSnapshot& a, const WorkerSnapshot& b) {
    return std::tuple(a.waiting_tokens + a.charged_tokens, requests_at(a)) <
           std::tuple(b.waiting_tokens + b.charged_tokens, requests_at(b));
  });
}

std::optional<std::size_t> pick_decode_worker(const RequestSize& request,
                                              std::uint64_t pending_tokens,
                                              std::span<const WorkerSnapshot> workers) {
  std::vector<DecodeRank> ranks;
  ranks.reserve(workers.size());
  for (const WorkerSnapshot& worker : workers) ranks.push_back(to_rank(request, worker));
  const auto length = static_cast<std::int64_t>(request.tokens);
  const auto pending = static_cast<std::int64_t>(pending_tokens);
  const DecodeTotals totals = totals_of(ranks);
  if (const auto picked = pick_decode_rank(length, pending, totals, ranks)) return picked;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (is_possible(request, workers[i])) ranks[i].free_kv_tokens = length;
  }
  return pick_decode_rank(length, pending, totals, ranks);
}

}  // namespace millrace::dataplane::routing
