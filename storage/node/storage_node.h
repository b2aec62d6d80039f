#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "storage/map/map_cell.h"
#include "storage/node/node_metrics.h"
#include "storage/node/target_runner.h"
#include "storage/wire/messages.h"

namespace millrace::storage::node {

struct StorageNodeConfig {
  std::string node_id;
  std::vector<TargetFolder> targets;
  std::uint64_t target_bytes = 0;  ///< of a new slot file; whole slots are made of it
  TargetSettings settings = {};
  std::size_t mailbox_requests = 4096;  ///< per target
  std::size_t index_cache_bytes = std::size_t{64} << 20;
};

/// All targets of a process: checks who a request is meant for and hands it to its target's thread.
/// Until its targets are open it answers kBusy. Any thread.
class StorageNode final : public ShardEndpoint {
 public:
  /// `maps`, `transport` and `registry` outlive it. `on_newer_map` is called, from any thread, when
  /// a request names a map that this node does not have yet.
  StorageNode(StorageNodeConfig config, const MapCell& maps, ShardTransport& transport,
              Registry& registry, Logger log, std::function<void()> on_newer_map);
  /// No request may be on its way into handle() any more.
  ~StorageNode() override;

  /// Opens all targets, each on its thread, for the map's cluster and block size. Call once, when
  /// there is a map. A target whose disk has failed answers with its reason and is no error here;
  /// kFailedPrecondition: one is of another cluster, layout or size, or another process has it.
  absl::Status open_targets();

  bool is_open() const { return is_open_; }

  void handle(ShardRequest request, ShardReplyCallback done) override;

  /// In the order of the configuration.
  std::vector<TargetStatus> status() const;
  /// Wishes of people, each named by a number that grows.
  void scrub(std::uint64_t request);
  void evict_to(std::uint64_t request, double fraction);

 private:
  struct Targets {
    std::vector<std::unique_ptr<TargetRunner>> in_order;
    std::map<std::string, TargetRunner*, std::less<>> by_id;
  };

  void ask_peer(const std::string& target_id, ShardOperation operation, ShardReplyCallback done);

  const StorageNodeConfig config_;
  const MapCell& maps_;
  ShardTransport& transport_;
  const NodeMetrics metrics_;
  const Logger log_;
  const std::function<void()> on_newer_map_;
  Targets targets_;  // not changed any more once is_open_
  std::atomic<bool> is_open_ = false;
};

}  // namespace millrace::storage::node
