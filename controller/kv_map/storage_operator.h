#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "api/admin/storage.h"
#include "common/time_point.h"
#include "storage/map/storage_map.h"

namespace millrace::controller::kv_map {

/// Something that changed, for the event log.
struct StorageNote {
  std::string kind;
  std::string subject;
  std::string detail;
};

struct StorageOperatorOptions {
  std::chrono::milliseconds report_interval{500};
  std::chrono::milliseconds node_timeout{3000};
  /// The name of a cluster that is made now; must be new each time.
  std::string new_cluster_id;
  /// Wishes are numbered from here on, so that their numbers grow over restarts too.
  std::uint64_t first_request = 1;
};

/// A member that is down for so many node timeouts is replaced by a spare, if there is one.
inline constexpr int kReplaceAfterTimeouts = 200;

/// Owns the storage map: who is there, who is dead, who has what, who replaces whom.
///
/// Pure: no I/O, no clock. One thread at a time. The map is decided here and becomes true when the
/// caller has made it durable; nothing of it may be shown before.
class StorageOperator {
 public:
  static constexpr std::size_t kMaxNodes = 16384;

  /// `stored` is the map as the last controller left it.
  StorageOperator(StorageOperatorOptions options, std::optional<storage::StorageMap> stored);

  /// Call once, before anything else: nodes of the map have one node timeout to report.
  void start(TimePoint now);

  /// What people want. kFailedPrecondition when it changes what cannot change any more (block size,
  /// k or m of a map that has groups), with both values.
  absl::Status check(const api::admin::DesiredStorage& desired) const;
  /// Follows it; call check() first. Makes the map when there is none.
  void set_desired(const api::admin::DesiredStorage& desired, TimePoint now);

  /// kFailedPrecondition: no storage is wanted, another protocol, or another cluster's node, both
  /// values named; kAlreadyExists: a target is another node's; kResourceExhausted over kMaxNodes.
  absl::StatusOr<api::admin::StorageReportReply> report(std::string_view node_id,
                                                        const api::admin::StorageReport& report,
                                                        TimePoint now);

  /// See replace_target of storage/map/map_plan.h.
  absl::Status replace(const api::admin::StorageReplace& replace);
  /// Wishes; kFailedPrecondition when no storage is wanted.
  absl::StatusOr<api::admin::StorageWish> scrub();
  absl::StatusOr<api::admin::StorageWish> evict(const api::admin::StorageEvict& evict);

  void on_timer(TimePoint now);
  /// When on_timer() is next due; nullopt while there is no node.
  std::optional<TimePoint> next_timer() const;

  const std::optional<storage::StorageMap>& map() const { return map_; }
  api::admin::StorageStatus status(TimePoint now) const;
  /// What happened since the last call.
  std::vector<StorageNote> take_notes();

 private:
  struct NodeRecord {
    TimePoint last_heard;
    bool is_alive = false;
    TimePoint silent_since;  ///< valid while not alive
    api::admin::StorageReport report;
  };

  void take(std::optional<storage::StorageMap> next);
  void note(std::string kind, std::string subject, std::string detail);
  void form_groups();
  void follow_liveness();
  void note_rebuilt(const api::admin::StorageReport& report);
  void replace_long_dead(TimePoint now);
  std::size_t alive_nodes() const;
  std::optional<std::string> alive_spare() const;

  const StorageOperatorOptions options_;
  api::admin::DesiredStorage desired_;
  std::optional<storage::StorageMap> map_;
  std::map<std::string, NodeRecord, std::less<>> nodes_;
  /// The epoch at which a member began to rebuild: only what a node found under it or a later one
  /// counts.
  std::map<std::string, std::uint64_t, std::less<>> rebuilding_since_;
  std::uint64_t next_request_;
  std::uint64_t scrub_request_ = 0;
  std::uint64_t evict_request_ = 0;
  double evict_to_fraction_ = 0;
  TimePoint last_replace_check_;
  std::vector<StorageNote> notes_;
};

}  // namespace millrace::controller::kv_map
