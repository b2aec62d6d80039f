#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "storage/map/storage_map.h"

namespace millrace::storage {

/// The newest map that a process has heard of, kept in a file so that a process that starts while
/// the controller is away knows its cluster. Any thread.
class MapCell {
 public:
  /// `cache_path` empty: not kept in a file. Starts with what the file holds when it is there; a
  /// file that cannot be read is an error here, not later.
  static absl::StatusOr<std::unique_ptr<MapCell>> open(std::string cache_path);

  /// nullptr until there is one.
  std::shared_ptr<const StorageMap> current() const;

  /// Takes a map that is newer than ours. An older or equal epoch does nothing (OK).
  /// kInvalidArgument: it breaks a rule; kFailedPrecondition: it is another cluster's, both named.
  /// A cache file that cannot be written is an error of the call, but the map is taken.
  absl::Status offer(const StorageMap& map);

 private:
  explicit MapCell(std::string cache_path) : cache_path_(std::move(cache_path)) {}

  const std::string cache_path_;
  std::mutex offering_;  ///< one writer of the file at a time; never held with mutex_ across I/O
  mutable std::mutex mutex_;
  std::shared_ptr<const StorageMap> map_;  // guarded by mutex_
};

}  // namespace millrace::storage
