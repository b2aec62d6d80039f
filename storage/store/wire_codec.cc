#include "storage/store/wire_codec.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "api/proto/storage.pb.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/types.h"

namespace millrace::storage::store {
namespace {

constexpr std::size_t kKeyBytes = sizeof(BlockKey::bytes);
constexpr std::size_t kItemOverhead = 64;
constexpr std::size_t kListedBytes = 64;
constexpr std::uint32_t kMaxListLimit = 16384;

std::string text_of(const BlockKey& key) {
  return {reinterpret_cast<const char*>(key.bytes.data()), kKeyBytes};
}

std::string text_of(const std::vector<BlockKey>& keys) {
  std::string text;
  text.reserve(keys.size() * kKeyBytes);
  for (const BlockKey& key : keys)
    text.append(reinterpret_cast<const char*>(key.bytes.data()), kKeyBytes);
  return text;
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

absl::StatusOr<BlockKey> key_of(std::string_view text) {
  if (text.size() != kKeyBytes) {
    return absl::InvalidArgumentError(
        str_cat("a block key of ", text.size(), " bytes, ", kKeyBytes, " is possible"));
  }
  BlockKey key;
  std::memcpy(key.bytes.data(), text.data(), kKeyBytes);
  return key;
}

absl::StatusOr<std::vector<BlockKey>> keys_of(std::string_view text) {
  if (text.size() % kKeyBytes != 0 || text.size() / kKeyBytes > kMaxKeysPerRequest) {
    return absl::InvalidArgumentError(str_cat("block keys of ", text.size(),
                                              " bytes: a multiple of ", kKeyBytes, ", at most ",
                                              kMaxKeysPerRequest, " keys, is possible"));
  }
  std::vector<BlockKey> keys(text.size() / kKeyBytes);
  for (std::size_t i = 0; i < keys.size(); ++i)
    std::memcpy(keys[i].bytes.data(), text.data() + i * kKeyBytes, kKeyBytes);
  return keys;
}

absl::StatusOr<TtlClass> ttl_of(std::uint32_t value) {
  if (value > static_cast<std::uint32_t>(TtlClass::kChatbot))
    return absl::InvalidArgumentError(str_cat("TTL class ", value, ", 0 and 1 are possible"));
  return static_cast<TtlClass>(value);
}

/// Puts an operation into the item's oneof.
struct OperationEncoder {
  proto::v1::ShardRequestItem& item;

  void operator()(const WriteShard& write) const { item.set_write_shard(text_of(write.shard)); }
  void operator()(const PublishShard& publish) const {
    item.mutable_publish()->set_key(text_of(publish.key));
    item.mutable_publish()->set_generation(publish.generation);
  }
  void operator()(const DropShard& drop) const {
    item.mutable_drop()->set_key(text_of(drop.key));
    item.mutable_drop()->set_generation(drop.generation);
  }
  void operator()(const ReadShard& read) const { item.set_read_key(text_of(read.key)); }
  void operator()(const QueryKeys& query) const {
    item.mutable_query()->set_keys(text_of(query.keys));
    item.mutable_query()->set_lease_ms(
        static_cast<std::uint32_t>(std::clamp<std::int64_t>(query.lease.count(), 0, UINT32_MAX)));
  }
  void operator()(const TouchKeys& touch) const {
    item.mutable_touch()->set_keys(text_of(touch.keys));
    item.mutable_touch()->set_ttl_class(static_cast<std::uint32_t>(touch.ttl));
  }
  void operator()(const ListShards& list) const {
    if (!list.from_start) item.mutable_list()->set_after(text_of(list.after));
    item.mutable_list()->set_limit(list.limit);
  }
  void operator()(const RepairShard& repair) const { item.set_repair_key(text_of(repair.key)); }
};

absl::StatusOr<ListShards> list_of(const proto::v1::ListBlockShards& list) {
  if (list.limit() == 0 || list.limit() > kMaxListLimit) {
    return absl::InvalidArgumentError(
        str_cat("a list of ", list.limit(), " shards, 1 to ", kMaxListLimit, " is possible"));
  }
  ListShards result{.after = {}, .from_start = list.after().empty(), .limit = list.limit()};
  if (!result.from_start) {
    ASSIGN_OR_RETURN(result.after, key_of(list.after()));
  }
  return result;
}

absl::StatusOr<ShardOperation> operation_of(const proto::v1::ShardRequestItem& item) {
  using Item = proto::v1::ShardRequestItem;
  switch (item.operation_case()) {
    case Item::kWriteShard:
      return WriteShard{bytes_of(item.write_shard())};
    case Item::kPublish: {
      ASSIGN_OR_RETURN(const BlockKey key, key_of(item.publish().key()));
      return PublishShard{key, item.publish().generation()};
    }
    case Item::kDrop: {
      ASSIGN_OR_RETURN(const BlockKey key, key_of(item.drop().key()));
      return DropShard{key, item.drop().generation()};
    }
    case Item::kReadKey: {
      ASSIGN_OR_RETURN(const BlockKey key, key_of(item.read_key()));
      return ReadShard{key};
    }
    case Item::kQuery: {
      ASSIGN_OR_RETURN(std::vector<BlockKey> keys, keys_of(item.query().keys()));
      return QueryKeys{std::move(keys), std::chrono::milliseconds(item.query().lease_ms())};
    }
    case Item::kTouch: {
      ASSIGN_OR_RETURN(std::vector<BlockKey> keys, keys_of(item.touch().keys()));
      ASSIGN_OR_RETURN(const TtlClass ttl, ttl_of(item.touch().ttl_class()));
      return TouchKeys{std::move(keys), ttl};
    }
    case Item::kList: {
      ASSIGN_OR_RETURN(const ListShards list, list_of(item.list()));
      return list;
    }
    case Item::kRepairKey: {
      ASSIGN_OR_RETURN(const BlockKey key, key_of(item.repair_key()));
      return RepairShard{key};
    }
    case Item::OPERATION_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a request without an operation that is known here");
}

}  // namespace

void begin_batch(const ShardRequest& first, proto::v1::ShardRequestBatch& batch) {
  batch.set_protocol_version(kProtocolVersion);
  batch.set_shard_layout_version(kShardLayoutVersion);
  batch.set_cluster_id(first.cluster_id);
  batch.set_map_epoch(first.map_epoch);
}

bool belongs_to(const ShardRequest& request, const proto::v1::ShardRequestBatch& batch) {
  return request.map_epoch == batch.map_epoch() && request.cluster_id == batch.cluster_id();
}

absl::Status check_versions(const proto::v1::ShardRequestBatch& batch) {
  if (batch.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(str_cat("the client speaks protocol version ",
                                                 batch.protocol_version(), ", this storage node ",
                                                 kProtocolVersion));
  }
  if (batch.shard_layout_version() != kShardLayoutVersion) {
    return absl::FailedPreconditionError(str_cat("the client uses shard layout version ",
                                                 batch.shard_layout_version(),
                                                 ", this storage node ", kShardLayoutVersion));
  }
  return absl::OkStatus();
}

void encode_request(ShardRequest request, std::uint64_t request_id,
                    std::chrono::milliseconds deadline, proto::v1::ShardRequestItem& item) {
  item.set_request_id(request_id);
  item.set_target_id(std::move(request.target_id));
  item.set_deadline_ms(
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(deadline.count(), 1, UINT32_MAX)));
  std::visit(OperationEncoder{item}, request.operation);
}

absl::StatusOr<ShardRequest> decode_request(const proto::v1::ShardRequestBatch& batch,
                                            proto::v1::ShardRequestItem& item) {
  ASSIGN_OR_RETURN(ShardOperation operation, operation_of(item));
  return ShardRequest{.cluster_id = batch.cluster_id(),
                      .map_epoch = batch.map_epoch(),
                      .target_id = std::move(*item.mutable_target_id()),
                      .operation = std::move(operation),
                      .deadline = std::chrono::milliseconds(item.deadline_ms())};
}

void encode_reply(ShardReply reply, std::uint64_t request_id, proto::v1::ShardReplyItem& item) {
  item.set_request_id(request_id);
  item.set_result(static_cast<std::uint32_t>(reply.result));
  item.set_message(std::move(reply.message));
  item.set_defect(static_cast<std::uint32_t>(reply.defect));
  item.set_generation(reply.generation);
  item.set_is_published(reply.is_published);
  if (!reply.shard.empty()) item.set_shard(text_of(reply.shard));
  if (!reply.present.empty()) {
    std::string present(reply.present.size(), '\0');
    for (std::size_t i = 0; i < present.size(); ++i) present[i] = reply.present[i] ? 1 : 0;
    item.set_present(std::move(present));
  }
  for (const ListedShard& shard : reply.listed) {
    auto* listed = item.add_listed();
    listed->set_key(text_of(shard.key));
    listed->set_generation(shard.generation);
    listed->set_is_published(shard.is_published);
    listed->set_ttl_class(static_cast<std::uint32_t>(shard.ttl));
    listed->set_depth(shard.depth);
    listed->set_touch_minute(shard.touch_minute);
  }
  item.set_is_end(reply.is_end);
}

absl::StatusOr<ShardReply> decode_reply(std::uint64_t map_epoch, proto::v1::ShardReplyItem& item) {
  if (item.result() > static_cast<std::uint32_t>(ShardResult::kUnavailable) ||
      item.defect() > static_cast<std::uint32_t>(ShardDefect::kGeneration)) {
    return absl::InvalidArgumentError(str_cat("a storage node answered result ", item.result(),
                                              " with defect ", item.defect(),
                                              ", which this version does not know"));
  }
  ShardReply reply{.result = static_cast<ShardResult>(item.result()),
                   .message = std::move(*item.mutable_message()),
                   .map_epoch = map_epoch,
                   .defect = static_cast<ShardDefect>(item.defect()),
                   .generation = item.generation(),
                   .is_published = item.is_published(),
                   .shard = bytes_of(item.shard()),
                   .present = {},
                   .listed = {},
                   .is_end = item.is_end()};
  reply.present.reserve(item.present().size());
  for (const char present : item.present()) reply.present.push_back(present != 0);
  reply.listed.reserve(static_cast<std::size_t>(item.listed_size()));
  for (const auto& listed : item.listed()) {
    ASSIGN_OR_RETURN(const BlockKey key, key_of(listed.key()));
    ASSIGN_OR_RETURN(const TtlClass ttl, ttl_of(listed.ttl_class()));
    reply.listed.push_back({.key = key,
                            .generation = listed.generation(),
                            .is_published = listed.is_published(),
                            .ttl = ttl,
                            .depth = listed.depth(),
                            .touch_minute = listed.touch_minute()});
  }
  return reply;
}

std::size_t wire_bytes(const ShardRequest& request) {
  std::size_t bytes = kItemOverhead + request.target_id.size() + kKeyBytes;
  if (const auto* write = std::get_if<WriteShard>(&request.operation)) bytes += write->shard.size();
  if (const auto* query = std::get_if<QueryKeys>(&request.operation))
    bytes += query->keys.size() * kKeyBytes;
  if (const auto* touch = std::get_if<TouchKeys>(&request.operation))
    bytes += touch->keys.size() * kKeyBytes;
  return bytes;
}

std::size_t wire_bytes(const ShardReply& reply) {
  return kItemOverhead + reply.message.size() + reply.shard.size() + reply.present.size() +
         reply.listed.size() * kListedBytes;
}

}  // namespace millrace::storage::store
