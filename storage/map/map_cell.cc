#include "storage/map/map_cell.h"

#include <utility>

#include "common/str_cat.h"

namespace millrace::storage {

absl::StatusOr<std::unique_ptr<MapCell>> MapCell::open(std::string cache_path) {
  std::unique_ptr<MapCell> cell(new MapCell(std::move(cache_path)));
  if (cell->cache_path_.empty()) return cell;
  absl::StatusOr<StorageMap> map = load_map(cell->cache_path_);
  if (map.ok()) {
    cell->map_ = std::make_shared<const StorageMap>(*std::move(map));
  } else if (!absl::IsNotFound(map.status())) {
    return map.status();
  }
  return cell;
}

std::shared_ptr<const StorageMap> MapCell::current() const {
  std::lock_guard lock(mutex_);
  return map_;
}

absl::Status MapCell::offer(const StorageMap& map) {
  if (absl::Status status = validate(map); !status.ok()) return status;
  std::lock_guard offering(offering_);
  const std::shared_ptr<const StorageMap> held = current();
  if (held != nullptr && held->cluster_id != map.cluster_id) {
    return absl::FailedPreconditionError(str_cat("a storage map of cluster ", map.cluster_id,
                                                 ", this process belongs to ", held->cluster_id));
  }
  if (held != nullptr && map.epoch <= held->epoch) return absl::OkStatus();
  {
    std::lock_guard lock(mutex_);
    map_ = std::make_shared<const StorageMap>(map);
  }
  return cache_path_.empty() ? absl::OkStatus() : save_map(cache_path_, map);
}

}  // namespace millrace::storage
