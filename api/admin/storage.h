#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace::api::admin {

/// Part of the desired state: how the cluster stores KV. All zero = it stores none.
struct DesiredStorage {
  int nodes = 0;             ///< storage processes, at most one on a machine
  int targets_per_node = 0;  ///< disks or lanes of each
  std::int64_t target_bytes = 0;
  std::int64_t block_bytes =
      0;                  ///< of the model's KV blocks; fixed once the cluster stores anything
  int data_shards = 10;   ///< k; fixed like block_bytes
  int parity_shards = 2;  ///< m; fixed like block_bytes
  int spares = 0;         ///< targets kept out of groups, to replace others
  /// Shared memory for fetched blocks on every node with engines; 0 = the fetcher's own default.
  std::int64_t fetch_bytes = 0;
  std::int64_t window_bytes = 0;       ///< of the model's sliding windows; 0 = none are kept
  std::int64_t window_pool_bytes = 0;  ///< shared memory for them, likewise; 0 = the default
  bool operator==(const DesiredStorage&) const = default;
};

/// What a storage node says of one of its targets.
struct StorageTargetReport {
  std::string target_id;
  std::string failure;  ///< empty while it works, else why it does not
  std::uint64_t slots = 0;
  std::uint64_t used_slots = 0;    ///< not yet reclaimed ones included
  std::uint64_t published = 0;     ///< shards that count
  std::uint64_t leased = 0;        ///< slots that may not be freed now
  std::uint64_t rebuild_left = 0;  ///< shards it lacks and knows of
  std::uint64_t rebuilt_epoch =
      0;  ///< of the map under which it last found nothing missing; 0 = never
  std::uint64_t scrub_request = 0;  ///< the scrub it is at, or has ended; 0 = none
  std::uint64_t scrub_checked = 0;  ///< shards
  std::uint64_t scrub_total = 0;
  std::uint64_t scrub_bad = 0;
  bool operator==(const StorageTargetReport&) const = default;
};

/// POST /api/v1/storage/nodes/{id}/report: a storage node introduces itself, and says how it is. It
/// comes every report interval; a node that is silent for the node timeout counts as dead.
struct StorageReport {
  std::uint32_t protocol_version = 0;
  std::string cluster_id;  ///< whose data it has; empty = none yet
  std::string address;     ///< host:port of its shard service
  std::uint64_t map_epoch = 0;
  std::uint64_t evict_request = 0;  ///< the last one it carried out
  std::vector<StorageTargetReport> targets;
};

struct StorageReportReply {
  std::uint64_t map_epoch = 0;  ///< GET /api/v1/storage/map when it is newer
  std::chrono::milliseconds report_interval{0};
  /// What people asked for. Each number names one wish, and grows; a node carries out a wish once.
  std::uint64_t scrub_request = 0;
  std::uint64_t evict_request = 0;
  double evict_to_fraction = 0;  ///< of the slots that may stay used
};

/// One node of GET /api/v1/storage.
struct StorageNodeInfo {
  std::string node_id;
  std::string address;
  bool is_alive = false;
  std::chrono::milliseconds report_age{0};
  std::uint64_t map_epoch = 0;      ///< of the map that it went by when it reported
  std::uint64_t evict_request = 0;  ///< the last one it carried out
  struct Target {
    StorageTargetReport report;
    std::int64_t group_id = -1;     ///< -1: a spare
    std::int64_t shard_index = -1;  ///< as above
    std::string member_state;       ///< "up", "rebuilding", "down" or "spare"
  };
  std::vector<Target> targets;
};

/// GET /api/v1/storage.
struct StorageStatus {
  std::string cluster_id;
  std::uint64_t map_epoch = 0;
  int data_shards = 0;
  int parity_shards = 0;
  std::int64_t block_bytes = 0;
  std::int64_t groups = 0;
  std::uint64_t scrub_request = 0;
  std::uint64_t evict_request = 0;
  std::vector<StorageNodeInfo> nodes;
};

/// POST /api/v1/storage/replace.
struct StorageReplace {
  std::string target_id;
  std::string spare_id;  ///< empty: the controller chooses
};

/// POST /api/v1/storage/scrub and /evict: the wish's number, to look for in the status.
struct StorageWish {
  std::uint64_t request = 0;
};

/// POST /api/v1/storage/evict.
struct StorageEvict {
  double to_fraction = 0;  ///< 0 = everything that is not leased
};

std::string to_json(const StorageReport& report);
std::string to_json(const StorageReportReply& reply);
std::string to_json(const StorageStatus& status);
std::string to_json(const StorageReplace& replace);
std::string to_json(const StorageWish& wish);
std::string to_json(const StorageEvict& evict);

/// kInvalidArgument names the field.
absl::StatusOr<StorageReport> parse_storage_report(std::string_view json);
absl::StatusOr<StorageReportReply> parse_storage_report_reply(std::string_view json);
absl::StatusOr<StorageStatus> parse_storage_status(std::string_view json);
absl::StatusOr<StorageReplace> parse_storage_replace(std::string_view json);
absl::StatusOr<StorageWish> parse_storage_wish(std::string_view json);
absl::StatusOr<StorageEvict> parse_storage_evict(std::string_view json);

}  // namespace millrace::api::admin
