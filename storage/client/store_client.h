#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "storage/map/storage_map.h"
#include "storage/store/block_store.h"

namespace millrace::storage::client {

struct StoreClientOptions {
  /// http://host:port, which is asked for newer maps; empty: nobody is.
  std::string controller_url{};
  /// File in which the map is kept; empty: in none.
  std::string map_path{};
  /// Where the store's counters go; null: nowhere. Must outlive the client.
  Registry* registry = nullptr;
  store::StoreSettings settings{};
};

/// A process's line to the storage nodes: the store, the map that it goes by, whoever brings newer
/// maps, and the connections. Any thread may call.
class StoreClient {
 public:
  /// Does not wait for a controller or a map: without a map everything is a miss, and a map is
  /// taken over whenever it comes. Errors: those of the map's file, and of a controller's URL that
  /// is none.
  static absl::StatusOr<std::unique_ptr<StoreClient>> open(const StoreClientOptions& options,
                                                           Logger log);
  /// Finishes everything that is under way as kShutdown.
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  /// Asks the controller for a newer map and waits for its answer. kNotFound: the cluster stores no
  /// KV; kUnavailable: no answer. Each names the controller.
  absl::Status fetch_map();

  store::BlockStore& blocks();
  /// nullptr until there is one.
  std::shared_ptr<const StorageMap> map() const;

 private:
  struct Parts;
  explicit StoreClient(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace millrace::storage::client
