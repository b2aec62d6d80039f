#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace millrace::dataplane::routing {

/// What an entrypoint knows of one worker at the moment of a decision: the worker's last load
/// report, and what this entrypoint sent there since (its charges; a report that covers them takes
/// them back).
struct WorkerSnapshot {
  bool is_accepting = false;  ///< connected, ready and not draining

  std::uint64_t running = 0;         ///< requests with a sequence
  std::uint64_t waiting = 0;         ///< requests queued at the worker
  std::uint64_t waiting_tokens = 0;  ///< their tokens, and what is left of running prefills
  std::uint64_t kv_tokens = 0;       ///< prompt and generated tokens of all of them
  std::uint64_t kv_blocks_used = 0;
  std::uint64_t kv_blocks_total = 0;

  std::uint64_t charged_requests = 0;
  std::uint64_t charged_tokens = 0;
  std::uint64_t charged_kv_blocks = 0;
};

/// What a request will take.
struct RequestSize {
  std::uint64_t tokens = 0;     ///< rows to prefill; for decode, the context it starts with
  std::uint64_t kv_blocks = 0;  ///< 128-token blocks that it may come to hold there
};

/// Chooses the prefill worker for a request: the fewest tokens ahead of it, then the fewest
/// requests. nullopt when no accepting worker's pool could ever hold the request.
///
/// Equal scores go to the lower index, so that equal inputs give equal answers everywhere.
std::optional<std::size_t> pick_prefill_worker(const RequestSize& request,
                                               std::span<const WorkerSnapshot> workers);

/// Chooses the decode worker for a request by pick_decode_rank() among those with room for its
/// blocks now; if it must wait everywhere, by the same rule among those that could ever hold it.
/// `pending_tokens`: of all requests that have no decode worker yet, this one included. nullopt
/// when no accepting worker's pool could ever hold the request.
std::optional<std::size_t> pick_decode_worker(const RequestSize& request,
                                              std::uint64_t pending_tokens,
                                              std::span<const WorkerSnapshot> workers);

}  // namespace millrace::dataplane::routing
