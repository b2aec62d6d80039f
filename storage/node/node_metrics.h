#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/metrics/metrics.h"
#include "storage/wire/messages.h"
#include "storage/wire/shard_format.h"

namespace millrace::storage::node {

/// Who found a defect or moved bytes.
enum class IoPurpose { kServe, kScrub, kRebuild };
/// "serve", "scrub", "rebuild"
const char* io_purpose_name(IoPurpose purpose);

enum class EvictReason {
  kTtl,
  kWatermark,
  kEmergency,
  kTombstone,
  kOrphan,
  kUnpublished,
  kDisplaced
};
const char* evict_reason_name(EvictReason reason);

enum class RebuildResult { kRebuilt, kIntact, kImpossible, kFailed };
const char* rebuild_result_name(RebuildResult result);

/// The name of an operation: "write", "publish", ...
const char* operation_name(const ShardOperation& operation);

/// What a storage node counts. Any thread; made once per process.
class NodeMetrics {
 public:
  NodeMetrics(Registry& registry, const std::vector<std::string>& target_ids);

  MetricFamily<Counter> requests;        ///< operation, result
  MetricFamily<Counter> bytes;           ///< direction, purpose: payload and header
  MetricFamily<Counter> defects;         ///< purpose, defect
  MetricFamily<Counter> io_errors;       ///< kind: read, write, sync, index
  MetricFamily<Counter> evictions;       ///< reason
  Counter lost_tombstones;               ///< members that did not hear of an eviction
  MetricFamily<Counter> rebuilds;        ///< result
  MetricFamily<Counter> pending;         ///< verdict: publish, drop
  MetricFamily<Gauge> slots;             ///< target, state
  MetricFamily<Gauge> target_state;      ///< target, state: 1 for the one it is in
  MetricFamily<Gauge> gc_age_seconds;    ///< target: since the oldest block was used
  MetricFamily<Gauge> rebuild_backlog;   ///< target: blocks known to lack a shard here
  MetricFamily<Gauge> repair_backlog;    ///< target
  MetricFamily<Gauge> pending_shards;    ///< target: written, not yet published
  MetricFamily<Gauge> leases;            ///< target
  MetricFamily<Gauge> scrub_fraction;    ///< target: of the pass under way
  MetricFamily<Gauge> rebuild_fraction;  ///< target: of the scan of peers
};

}  // namespace millrace::storage::node
