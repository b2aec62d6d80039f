#include "storage/node/storage_node.h"

#include <chrono>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::storage::node {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string> ids_of(const std::vector<TargetFolder>& folders) {
  std::vector<std::string> ids;
  ids.reserve(folders.size());
  for (const TargetFolder& folder : folders) ids.push_back(folder.target_id);
  return ids;
}

ShardReply refusal(ShardResult result, std::string message, std::uint64_t epoch) {
  ShardReply reply;
  reply.result = result;
  reply.message = std::move(message);
  reply.map_epoch = epoch;
  return reply;
}

}  // namespace

StorageNode::StorageNode(StorageNodeConfig config, const MapCell& maps, ShardTransport& transport,
                         Registry& registry, Logger log, std::function<void()> on_newer_map)
    : config_(std::move(config)),
      maps_(maps),
      transport_(transport),
      metrics_(registry, ids_of(config_.targets)),
      log_(std::move(log)),
      on_newer_map_(std::move(on_newer_map)) {}

StorageNode::~StorageNode() {
  // All threads first: those that still run ask the others, which must be there to refuse.
  for (const auto& target : targets_.in_order) target->stop();
}

absl::Status StorageNode::open_targets() {
  const std::shared_ptr<const StorageMap> map = maps_.current();
  if (map == nullptr) return absl::FailedPreconditionError("there is no storage map yet");
  const std::size_t slot_bytes = slot_bytes_for(map->block_bytes, map->data_shards);
  const std::uint64_t slot_count = config_.target_bytes / slot_bytes;
  if (slot_count == 0)
    return absl::InvalidArgumentError(
        str_cat("a target of ", config_.target_bytes, " bytes holds no slot of ", slot_bytes));
  for (const TargetFolder& folder : config_.targets) {
    TargetRunnerOptions options;
    options.folder = folder;
    options.identity = {.cluster_id = map->cluster_id,
                        .target_id = folder.target_id,
                        .slot_bytes = static_cast<std::uint32_t>(slot_bytes),
                        .slot_count = slot_count};
    options.settings = config_.settings;
    options.mailbox_requests = config_.mailbox_requests;
    options.index_cache_bytes = config_.index_cache_bytes;
    targets_.in_order.push_back(std::make_unique<TargetRunner>(
        std::move(options), maps_,
        [this](const std::string& target_id, ShardOperation operation, ShardReplyCallback done) {
          ask_peer(target_id, std::move(operation), std::move(done));
        },
        metrics_, log_));
    targets_.by_id[folder.target_id] = targets_.in_order.back().get();
  }
  absl::Status status;
  for (const auto& target : targets_.in_order) {
    const absl::Status opened = target->wait_opened();
    if (opened.code() == absl::StatusCode::kFailedPrecondition) status.Update(opened);
  }
  if (status.ok()) is_open_ = true;
  return status;
}

void StorageNode::handle(ShardRequest request, ShardReplyCallback done) {
  const std::shared_ptr<const StorageMap> map = maps_.current();
  if (map == nullptr || !is_open_)
    return done(refusal(ShardResult::kBusy, "this node is starting", 0));
  const std::uint64_t epoch = map->epoch;
  if (request.cluster_id != map->cluster_id)
    return done(refusal(ShardResult::kWrongCluster,
                        str_cat("the request is for cluster ", request.cluster_id,
                                ", this node is of cluster ", map->cluster_id),
                        epoch));
  if (request.map_epoch < epoch)
    return done(refusal(
        ShardResult::kStaleMap,
        str_cat("the request goes by map ", request.map_epoch, ", this node by map ", epoch),
        epoch));
  if (request.map_epoch > epoch) on_newer_map_();
  const auto target = targets_.by_id.find(request.target_id);
  if (target == targets_.by_id.end())
    return done(refusal(ShardResult::kWrongTarget,
                        str_cat("target ", request.target_id, " is not on node ", config_.node_id),
                        epoch));
  QueuedRequest queued;
  queued.operation = std::move(request.operation);
  queued.overdue_at = Clock::now() + request.deadline;
  queued.done = [done = std::move(done), epoch](ShardReply reply) {
    reply.map_epoch = epoch;
    done(std::move(reply));
  };
  if (!target->second->push(queued))
    queued.done(refusal(ShardResult::kBusy, "the queue of the target is full", epoch));
}

void StorageNode::ask_peer(const std::string& target_id, ShardOperation operation,
                           ShardReplyCallback done) {
  const std::shared_ptr<const StorageMap> map = maps_.current();
  ShardRequest request;
  request.cluster_id = map->cluster_id;
  request.map_epoch = map->epoch;
  request.target_id = target_id;
  request.operation = std::move(operation);
  request.deadline = config_.settings.peer_timeout;
  // Not yet: the threads of targets begin before all targets are known.
  if (!is_open_) return done(refusal(ShardResult::kBusy, "this node is starting", map->epoch));
  if (targets_.by_id.count(target_id) > 0) return handle(std::move(request), std::move(done));
  const std::string address(map->address_of(target_id));
  if (address.empty())
    return done(refusal(ShardResult::kUnavailable,
                        str_cat("the map knows no address of target ", target_id), map->epoch));
  transport_.send(address, std::move(request),
                  [hook = on_newer_map_, done = std::move(done)](ShardReply reply) {
                    if (reply.result == ShardResult::kStaleMap) hook();
                    done(std::move(reply));
                  });
}

std::vector<TargetStatus> StorageNode::status() const {
  std::vector<TargetStatus> status;
  if (!is_open_) return status;
  status.reserve(targets_.in_order.size());
  for (const auto& target : targets_.in_order) status.push_back(target->status());
  return status;
}

void StorageNode::scrub(std::uint64_t request) {
  if (!is_open_) return;
  for (const auto& target : targets_.in_order) target->push(OwedEvent(ScrubWish{request}));
}

void StorageNode::evict_to(std::uint64_t request, double fraction) {
  if (!is_open_) return;
  for (const auto& target : targets_.in_order)
    target->push(OwedEvent(EvictWish{request, fraction}));
}

}  // namespace millrace::storage::node
