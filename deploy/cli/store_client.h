#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "storage/link/map_poller.h"
#include "storage/map/map_cell.h"
#include "storage/store/block_store.h"

namespace millrace::deploy::cli {

/// A client of a cluster's storage nodes for as long as a command runs. Follows the controller's
/// map: a node that dies meanwhile is not asked any more.
class StoreClient {
 public:
  /// Asks the controller at host:port for the map. kNotFound: the cluster stores no KV;
  /// kUnavailable: no controller; kFailedPrecondition: there is no group yet.
  static absl::StatusOr<std::unique_ptr<StoreClient>> open(const std::string& controller);
  ~StoreClient();

  storage::store::BlockStore& blocks() { return *store_; }
  const storage::StorageMap& map() const { return *map_->current(); }

 private:
  StoreClient() = default;

  // Each ends before those above it, which it uses.
  std::unique_ptr<storage::MapCell> map_;
  std::unique_ptr<storage::link::MapPoller> poller_;
  std::unique_ptr<storage::ShardTransport> transport_;
  std::unique_ptr<storage::store::BlockStore> store_;
  std::unique_ptr<storage::link::MapListener> listener_;
};

}  // namespace millrace::deploy::cli
