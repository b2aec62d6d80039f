#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "api/admin/cluster.h"
#include "controller/core/stored_state.h"

namespace millrace::controller::state {

/// The controller's durable state: one SQLite file, one connection, write-ahead log, every commit
/// synced before it returns. One thread at a time.
///
/// The file is locked for as long as the store lives, also against a kill: the lock belongs to the
/// process. A second controller on the same folder is refused.
class Store {
 public:
  /// Events beyond this many are dropped, oldest first.
  static constexpr std::size_t kMaxEvents = 1000;

  /// Creates the folder's file when there is none. kFailedPrecondition: another controller has it,
  /// or it was written by a newer version; kPermissionDenied, kDataLoss: it cannot be used. The
  /// message names the file and says what to do.
  static absl::StatusOr<std::unique_ptr<Store>> open(const std::string& data_dir);
  ~Store();

  /// What was committed last; a default-constructed state when nothing was.
  absl::StatusOr<core::StoredState> load();

  /// Replaces the state and appends the events, all or nothing. `base_version` is the version the
  /// decision was made on; kAborted when the stored one is another.
  absl::Status commit(std::uint64_t base_version, const core::StoredState& state,
                      std::span<const api::admin::ClusterEvent> events);

  /// The kept events with an id above `after`, oldest first.
  absl::StatusOr<api::admin::EventList> events_after(std::uint64_t after);

 private:
  struct Impl;
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::controller::state
