#include "api/entrypoint/fake_store.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>

#include <chrono>
#include <variant>

#include "common/check.h"
#include "common/str_cat.h"
#include "storage/store/grpc_service.h"
#include "storage/store/simulated_nodes.h"

namespace millrace::api::entrypoint::test {

using storage::BlockKey;
using storage::ShardReply;
using storage::ShardReplyCallback;
using storage::ShardRequest;

FakeStore::FakeStore() {
  service_ = storage::store::make_storage_service(*this);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  CHECK(server_ != nullptr);
  storage::StorageMap map = *storage::store::simulated_map(2, 1, 1, 4096);
  for (storage::StorageNodeEntry& node : map.nodes) node.address = str_cat("127.0.0.1:", port);
  map_ = std::make_shared<const storage::StorageMap>(std::move(map));
}

FakeStore::~FakeStore() {
  set_silent(false);
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  server_->Wait();
}

void FakeStore::plant(const std::vector<BlockKey>& keys) {
  const std::lock_guard lock(mutex_);
  planted_.insert(keys.begin(), keys.end());
}

void FakeStore::plant_everything() {
  const std::lock_guard lock(mutex_);
  has_everything_ = true;
}

void FakeStore::set_silent(bool is_silent) {
  const std::lock_guard lock(mutex_);
  is_silent_ = is_silent;
  if (is_silent) return;
  for (const auto& [request, done] : kept_) done(answer(request));
  kept_.clear();
}

std::map<BlockKey, int> FakeStore::asked() const {
  const std::lock_guard lock(mutex_);
  return asked_;
}

std::set<BlockKey> FakeStore::touched() const {
  const std::lock_guard lock(mutex_);
  return touched_;
}

void FakeStore::handle(ShardRequest request, ShardReplyCallback done) {
  const std::lock_guard lock(mutex_);
  if (is_silent_) {
    kept_.emplace_back(std::move(request), std::move(done));
  } else {
    done(answer(request));
  }
}

ShardReply FakeStore::answer(const ShardRequest& request) {
  ShardReply reply;
  reply.map_epoch = map_->epoch;
  reply.result = storage::ShardResult::kOk;
  if (const auto* query = std::get_if<storage::QueryKeys>(&request.operation)) {
    for (const BlockKey& key : query->keys) {
      ++asked_[key];
      reply.present.push_back(has_everything_ || planted_.contains(key));
    }
  } else if (const auto* touch = std::get_if<storage::TouchKeys>(&request.operation)) {
    touched_.insert(touch->keys.begin(), touch->keys.end());
  }
  return reply;
}

}  // namespace millrace::api::entrypoint::test
