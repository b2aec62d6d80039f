#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "storage/kv/eviction.h"

namespace millrace::storage::node {

/// How a target behaves. Times are monotonic; rates are per target.
struct TargetSettings {
  // Serving.
  int queue_depth = 128;  ///< operations on the slot file in flight, one of them kept for a sync
  /// A freed slot is not written before this has passed: longer than any read's deadline.
  std::chrono::milliseconds slot_grace{10'000};
  std::chrono::milliseconds max_lease{60'000};  ///< longer leases are cut to this
  std::size_t max_leases = std::size_t{1} << 20;
  /// A target that found its disk full is opened again after this, and each time it is full again
  /// after twice the time, up to 32 times this.
  std::chrono::milliseconds full_retry{10'000};

  // Shards whose write never heard the end.
  std::chrono::milliseconds pending_timeout{60'000};

  // Eviction.
  kv::TtlPolicy ttl = {};
  kv::Watermarks watermarks = {};
  /// A member that is not the owner lets go of a shard that is so much older than its TTL: the
  /// owner's tombstone was lost, or the owner never had the block.
  std::uint32_t orphan_slack_minutes = 24 * 60;
  std::chrono::milliseconds gc_interval{1'000};  ///< between two looks at what is old
  std::size_t max_evictions = 512;               ///< waiting for the answers of peers

  // Scrub: every stored shard is read and checked once in `scrub_interval`, if the rate allows.
  std::chrono::hours scrub_interval{14 * 24};
  std::chrono::minutes scrub_start_delay{10};  ///< after the start of the process
  std::uint64_t scrub_bytes_per_second = std::uint64_t{8} << 20;

  // Rebuild and repair.
  std::uint64_t rebuild_bytes_per_second = std::uint64_t{100} << 20;  ///< read from peers
  std::size_t max_rebuilds = 4;                                       ///< blocks at a time
  std::size_t rebuild_queue = std::size_t{1} << 17;  ///< candidates kept; the rest is found later
  std::size_t repair_queue = 4096;
  std::uint32_t list_page = 1024;  ///< shards asked for at a time

  std::chrono::milliseconds peer_timeout{2'000};
  std::size_t max_peer_calls = 8192;
};

}  // namespace millrace::storage::node
