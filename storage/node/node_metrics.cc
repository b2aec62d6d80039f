#include "storage/node/node_metrics.h"

#include "common/check.h"

namespace millrace::storage::node {
namespace {

const std::vector<std::string> kOperations = {"write", "publish", "drop", "read",
                                              "query", "touch",   "list", "repair"};
const std::vector<std::string> kPurposes = {"serve", "scrub", "rebuild"};

std::vector<std::string> all_results() {
  std::vector<std::string> names;
  for (int i = 0; i <= static_cast<int>(ShardResult::kUnavailable); ++i)
    names.emplace_back(shard_result_name(static_cast<ShardResult>(i)));
  return names;
}

std::vector<std::string> all_defects() {
  std::vector<std::string> names;
  for (int i = 0; i <= static_cast<int>(ShardDefect::kGeneration); ++i)
    names.emplace_back(shard_defect_name(static_cast<ShardDefect>(i)));
  return names;
}

}  // namespace

const char* io_purpose_name(IoPurpose purpose) {
  switch (purpose) {
    case IoPurpose::kServe:
      return "serve";
    case IoPurpose::kScrub:
      return "scrub";
    case IoPurpose::kRebuild:
      break;
  }
  return "rebuild";
}

const char* evict_reason_name(EvictReason reason) {
  switch (reason) {
    case EvictReason::kTtl:
      return "ttl";
    case EvictReason::kWatermark:
      return "watermark";
    case EvictReason::kEmergency:
      return "emergency";
    case EvictReason::kTombstone:
      return "tombstone";
    case EvictReason::kOrphan:
      return "orphan";
    case EvictReason::kUnpublished:
      return "unpublished";
    case EvictReason::kDisplaced:
      break;
  }
  return "displaced";
}

const char* rebuild_result_name(RebuildResult result) {
  switch (result) {
    case RebuildResult::kRebuilt:
      return "rebuilt";
    case RebuildResult::kIntact:
      return "intact";
    case RebuildResult::kImpossible:
      return "impossible";
    case RebuildResult::kFailed:
      break;
  }
  return "failed";
}

const char* operation_name(const ShardOperation& operation) {
  return kOperations[operation.index()].c_str();
}

NodeMetrics::NodeMetrics(Registry& registry, const std::vector<std::string>& target_ids)
    : requests(registry.counter("millrace_storage_requests_total", "Shard requests by their answer",
                                {{"operation", kOperations}, {"result", all_results()}})),
      bytes(registry.counter("millrace_storage_shard_bytes_total",
                             "Bytes of shards that a slot file read or wrote",
                             {{"direction", {"read", "write"}}, {"purpose", kPurposes}})),
      defects(registry.counter("millrace_storage_shard_defects_total",
                               "Stored shards that were found to be damaged",
                               {{"purpose", kPurposes}, {"defect", all_defects()}})),
      io_errors(registry.counter("millrace_storage_io_errors_total", "Failed operations of a disk",
                                 {{"kind", {"read", "write", "sync", "index"}}})),
      evictions(registry.counter("millrace_storage_evictions_total", "Shards that were let go of",
                                 {{"reason",
                                   {"ttl", "watermark", "emergency", "tombstone", "orphan",
                                    "unpublished", "displaced"}}})),
      lost_tombstones(registry.counter("millrace_storage_lost_tombstones_total",
                                       "Members of a group that did not hear of an eviction")),
      rebuilds(registry.counter("millrace_storage_rebuilds_total", "Shards that were made again",
                                {{"result", {"rebuilt", "intact", "impossible", "failed"}}})),
      pending(registry.counter("millrace_storage_pending_resolved_total",
                               "Shards whose publication was not heard of, by what peers said",
                               {{"verdict", {"publish", "drop"}}})),
      slots(
          registry.gauge("millrace_storage_slots", "Slots by state",
                         {{"target", target_ids}, {"state", {"free", "used", "cooling", "bad"}}})),
      target_state(
          registry.gauge("millrace_storage_target_state", "1 for the state that a target is in",
                         {{"target", target_ids}, {"state", {"serving", "read_only", "failed"}}})),
      gc_age_seconds(registry.gauge("millrace_storage_gc_age_seconds",
                                    "Time since the oldest block was last used",
                                    {{"target", target_ids}})),
      rebuild_backlog(registry.gauge("millrace_storage_rebuild_backlog",
                                     "Blocks that are known to lack their shard here",
                                     {{"target", target_ids}})),
      repair_backlog(registry.gauge("millrace_storage_repair_backlog",
                                    "Shards whose repair was asked for", {{"target", target_ids}})),
      pending_shards(registry.gauge("millrace_storage_pending_shards",
                                    "Shards that are written and not yet published",
                                    {{"target", target_ids}})),
      leases(registry.gauge("millrace_storage_leases", "Keys that readers have leased",
                            {{"target", target_ids}})),
      scrub_fraction(registry.gauge("millrace_storage_scrub_progress_ratio",
                                    "How far the scrub under way has come",
                                    {{"target", target_ids}})),
      rebuild_fraction(registry.gauge("millrace_storage_rebuild_scan_ratio",
                                      "How far the comparison with the peers has come",
                                      {{"target", target_ids}})) {}

}  // namespace millrace::storage::node
