#include "storage/store/simulated_nodes.h"

#include <algorithm>
#include <utility>

#include "common/str_cat.h"
#include "storage/wire/shard_format.h"

namespace millrace::storage::store {
namespace {

ShardReply reply_of(ShardResult result) {
  ShardReply reply;
  reply.result = result;
  return reply;
}

/// Seals the payload under a header that lies.
void reseal(std::vector<std::byte>& shard, const std::function<void(ShardHeader&)>& lie) {
  ShardHeader header;
  if (read_shard(shard, header) != ShardDefect::kNone) return;
  lie(header);
  shard.resize(kShardHeaderBytes + header.payload_bytes);
  seal_shard(header, shard);
}

void damage(TargetFault fault, std::vector<std::byte>& shard) {
  switch (fault) {
    case TargetFault::kFlipBit:
      shard[shard.size() / 2] ^= std::byte{1};
      break;
    case TargetFault::kTruncate:
      shard.resize(shard.size() - 1);
      break;
    case TargetFault::kZeros:
      std::fill(shard.begin(), shard.end(), std::byte{0});
      break;
    case TargetFault::kOtherKey:
      reseal(shard, [](ShardHeader& header) { header.key.bytes[5] ^= 1; });
      break;
    case TargetFault::kOtherIndex:
      reseal(shard, [](ShardHeader& header) { header.shard_index ^= 1; });
      break;
    case TargetFault::kOtherLayout:
      reseal(shard, [](ShardHeader& header) {
        header.block_bytes -= 1;
        header.payload_bytes =
            static_cast<std::uint32_t>(shard_payload_bytes(header.block_bytes, header.data_shards));
      });
      break;
    default:
      break;
  }
}

}  // namespace

void SimulatedNodes::handle(ShardRequest request, ShardReplyCallback done) {
  Target& target = targets_[request.target_id];
  ++target.requests;
  if (target.fault == TargetFault::kSilent) {
    target.held.emplace_back(std::move(request), std::move(done));
    return;
  }
  done(answer(target, request));
}

void SimulatedNodes::set_fault(const std::string& target_id, TargetFault fault) {
  Target& target = targets_[target_id];
  target.fault = fault;
  if (fault == TargetFault::kForgets) target.shards.clear();
  if (fault == TargetFault::kSilent) return;
  auto held = std::exchange(target.held, {});
  for (auto& [request, done] : held) done(answer(target, request));
}

ShardReply SimulatedNodes::answer(Target& target, ShardRequest& request) {
  ShardReply reply;
  const std::uint64_t epoch = map_->epoch;
  if (target.fault == TargetFault::kUnavailable) return reply_of(ShardResult::kUnavailable);
  if (request.cluster_id != map_->cluster_id) {
    reply.result = ShardResult::kWrongCluster;
  } else if (request.map_epoch < epoch) {
    reply.result = ShardResult::kStaleMap;
  } else if (target.fault == TargetFault::kBusy) {
    reply.result = ShardResult::kBusy;
  } else if (auto* shard = std::get_if<WriteShard>(&request.operation)) {
    reply = write(target, *shard);
  } else if (const auto* wanted = std::get_if<ReadShard>(&request.operation)) {
    reply = read(target, wanted->key);
  } else if (const auto* publish = std::get_if<PublishShard>(&request.operation)) {
    const auto found = target.shards.find(publish->key);
    const bool is_there =
        found != target.shards.end() && found->second.generation == publish->generation;
    if (is_there) found->second.is_published = true;
    reply.result = is_there ? ShardResult::kOk : ShardResult::kNotFound;
  } else if (const auto* drop = std::get_if<DropShard>(&request.operation)) {
    const auto found = target.shards.find(drop->key);
    if (found != target.shards.end() &&
        (drop->generation == 0 || drop->generation == found->second.generation))
      target.shards.erase(found);
    reply.result = ShardResult::kOk;
  } else if (const auto* query = std::get_if<QueryKeys>(&request.operation)) {
    for (const BlockKey& key : query->keys) {
      const auto found = target.shards.find(key);
      reply.present.push_back(found != target.shards.end() && found->second.is_published);
    }
    reply.result = ShardResult::kOk;
  } else if (const auto* touch = std::get_if<TouchKeys>(&request.operation)) {
    target.touches += touch->keys.size();
    reply.result = ShardResult::kOk;
  } else if (std::holds_alternative<RepairShard>(request.operation)) {
    ++target.repairs;
    reply.result = ShardResult::kOk;
  } else if (std::holds_alternative<ListShards>(request.operation)) {
    reply.is_end = true;
    for (const auto& [key, stored] : target.shards)
      reply.listed.push_back(
          {.key = key, .generation = stored.generation, .is_published = stored.is_published});
    reply.result = ShardResult::kOk;
  }
  reply.map_epoch = epoch;
  return reply;
}

ShardReply SimulatedNodes::write(Target& target, WriteShard& write) {
  ShardHeader header;
  const ShardDefect defect = read_shard(write.shard, header);
  if (defect != ShardDefect::kNone) {
    ShardReply reply = reply_of(ShardResult::kInvalid);
    reply.defect = defect;
    return reply;
  }
  const auto found = target.shards.find(header.key);
  if (found != target.shards.end()) {
    ShardReply reply = reply_of(ShardResult::kExists);
    reply.generation = found->second.generation;
    reply.is_published = found->second.is_published;
    return reply;
  }
  target.shards.emplace(header.key, StoredShard{.generation = header.generation,
                                                .is_published = false,
                                                .shard = std::move(write.shard)});
  return reply_of(ShardResult::kOk);
}

ShardReply SimulatedNodes::read(Target& target, const BlockKey& key) {
  const auto found = target.shards.find(key);
  if (found == target.shards.end() || !found->second.is_published)
    return reply_of(ShardResult::kNotFound);
  ShardReply reply;
  if (target.fault == TargetFault::kSaysBad) {
    reply.result = ShardResult::kBadShard;
    reply.defect = ShardDefect::kChecksum;
    return reply;
  }
  reply.result = ShardResult::kOk;
  reply.generation = found->second.generation;
  reply.shard = found->second.shard;
  damage(target.fault, reply.shard);
  return reply;
}

const SimulatedNodes::Target* SimulatedNodes::target_of(const std::string& target_id) const {
  const auto found = targets_.find(target_id);
  return found == targets_.end() ? nullptr : &found->second;
}

const SimulatedNodes::StoredShard* SimulatedNodes::find(const std::string& target_id,
                                                        const BlockKey& key) const {
  const Target* target = target_of(target_id);
  if (target == nullptr) return nullptr;
  const auto found = target->shards.find(key);
  return found == target->shards.end() ? nullptr : &found->second;
}

void SimulatedNodes::plant(const std::string& target_id, const BlockKey& key, StoredShard shard) {
  targets_[target_id].shards[key] = std::move(shard);
}

std::uint64_t SimulatedNodes::requests_to(const std::string& target_id) const {
  const Target* target = target_of(target_id);
  return target == nullptr ? 0 : target->requests;
}

std::uint64_t SimulatedNodes::touches_of(const std::string& target_id) const {
  const Target* target = target_of(target_id);
  return target == nullptr ? 0 : target->touches;
}

std::uint64_t SimulatedNodes::repairs_of(const std::string& target_id) const {
  const Target* target = target_of(target_id);
  return target == nullptr ? 0 : target->repairs;
}

std::shared_ptr<const StorageMap> simulated_map(int data_shards, int parity_shards, int groups,
                                                std::uint32_t block_bytes, std::uint64_t epoch) {
  auto map = std::make_shared<StorageMap>();
  map->cluster_id = "simulated";
  map->epoch = epoch;
  map->data_shards = data_shards;
  map->parity_shards = parity_shards;
  map->block_bytes = block_bytes;
  for (int g = 0; g < groups; ++g) {
    Group group{.id = static_cast<std::uint32_t>(g + 1), .members = {}};
    for (int i = 0; i < data_shards + parity_shards; ++i) {
      const int number = g * (data_shards + parity_shards) + i;
      map->nodes.push_back({.id = str_cat("n", number), .address = str_cat("n", number)});
      map->targets.push_back({.id = str_cat("t", number), .node_id = str_cat("n", number)});
      group.members.push_back({.target_id = str_cat("t", number)});
    }
    map->groups.push_back(std::move(group));
  }
  return map;
}

}  // namespace millrace::storage::store
