#include "dataplane/routing/least_loaded.h"

#include <tuple>

namespace millrace::dataplane::routing {
namespace {

std::uint64_t requests_at(const WorkerSnapshot& worker) {
  return worker.running + worker.waiting + worker.charged_requests;
}

std::uint64_t blocks_at(const WorkerSnapshot& worker) {
  return worker.kv_blocks_used + worker.charged_kv_blocks;
}

bool is_possible(const RequestSize& request, const WorkerSnapshot& worker) {
  return worker.is_accepting && request.kv_blocks <= worker.kv_blocks_total;
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
                                              std::span<const WorkerSnapshot> workers) {
  return pick(request, workers, [&](const WorkerSnapshot& a, const WorkerSnapshot& b) {
    const bool a_must_wait = blocks_at(a) + request.kv_blocks > a.kv_blocks_total;
    const bool b_must_wait = blocks_at(b) + request.kv_blocks > b.kv_blocks_total;
    if (a_must_wait != b_must_wait) return b_must_wait;
    if (requests_at(a) != requests_at(b)) return requests_at(a) < requests_at(b);
    // used_a / total_a < used_b / total_b without a division.
    return blocks_at(a) * b.kv_blocks_total < blocks_at(b) * a.kv_blocks_total;
  });
}

}  // namespace millrace::dataplane::routing
