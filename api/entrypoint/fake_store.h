#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "storage/kv/block_key.h"
#include "storage/map/storage_map.h"
#include "storage/wire/messages.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace millrace::api::entrypoint::test {

/// The storage nodes of a cluster, in this process: a group of three targets behind one real gRPC
/// server, which know names of blocks and nothing of their bytes. Any thread.
class FakeStore final : public storage::ShardEndpoint {
 public:
  FakeStore();
  ~FakeStore() override;

  /// What the controller gives clients.
  const storage::StorageMap& map() const { return *map_; }

  /// Blocks with these names exist from now on.
  void plant(const std::vector<storage::BlockKey>& keys);
  /// Every block exists, whatever its name.
  void plant_everything();
  /// Whether requests are kept without an answer; those that were kept are answered after it.
  void set_silent(bool is_silent);

  /// How often each name was asked for.
  std::map<storage::BlockKey, int> asked() const;
  std::set<storage::BlockKey> touched() const;

  void handle(storage::ShardRequest request, storage::ShardReplyCallback done) override;

 private:
  storage::ShardReply answer(const storage::ShardRequest& request);

  std::shared_ptr<const storage::StorageMap> map_;
  mutable std::mutex mutex_;  // of what follows
  bool is_silent_ = false;
  bool has_everything_ = false;
  std::set<storage::BlockKey> planted_;
  std::set<storage::BlockKey> touched_;
  std::map<storage::BlockKey, int> asked_;
  std::vector<std::pair<storage::ShardRequest, storage::ShardReplyCallback>> kept_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace millrace::api::entrypoint::test
