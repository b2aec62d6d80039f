#include "storage/store/wire_codec.h"

#include <gtest/gtest.h>

#include <functional>

#include "api/proto/storage.pb.h"
#include "common/str_cat.h"
#include "common/types.h"

namespace millrace::storage::store {
namespace {

BlockKey key_of(std::uint8_t first) {
  BlockKey key;
  for (std::size_t i = 0; i < key.bytes.size(); ++i)
    key.bytes[i] = static_cast<std::uint8_t>(first + i);
  return key;
}

/// There and back, through the bytes of the wire.
ShardRequest round_trip(ShardRequest request) {
  proto::v1::ShardRequestBatch batch;
  begin_batch(request, batch);
  EXPECT_TRUE(belongs_to(request, batch));
  const auto deadline = request.deadline;
  encode_request(std::move(request), 7, deadline, *batch.add_items());
  proto::v1::ShardRequestBatch received;
  EXPECT_TRUE(received.ParseFromString(batch.SerializeAsString()));
  EXPECT_TRUE(check_versions(received).ok());
  EXPECT_EQ(received.items(0).request_id(), 7U);
  auto decoded = decode_request(received, *received.mutable_items(0));
  EXPECT_TRUE(decoded.ok()) << decoded.status();
  return *std::move(decoded);
}

ShardRequest request_of(ShardOperation operation) {
  return {.cluster_id = "c",
          .map_epoch = 12,
          .target_id = "t3",
          .operation = std::move(operation),
          .deadline = std::chrono::milliseconds(250)};
}

template <typename Operation>
Operation operation_after(Operation operation) {
  const ShardRequest request = round_trip(request_of(std::move(operation)));
  EXPECT_EQ(request.cluster_id, "c");
  EXPECT_EQ(request.map_epoch, 12U);
  EXPECT_EQ(request.target_id, "t3");
  EXPECT_EQ(request.deadline, std::chrono::milliseconds(250));
  return std::get<Operation>(request.operation);
}

TEST(WireCodec, EveryOperationComesBack) {
  const std::vector<std::byte> bytes = {std::byte{0}, std::byte{255}, std::byte{7}};
  EXPECT_EQ(operation_after(WriteShard{bytes}).shard, bytes);
  const auto publish = operation_after(PublishShard{key_of(1), UINT64_MAX});
  EXPECT_EQ(publish.key, key_of(1));
  EXPECT_EQ(publish.generation, UINT64_MAX);
  const auto drop = operation_after(DropShard{key_of(2), 0});
  EXPECT_EQ(drop.key, key_of(2));
  EXPECT_EQ(drop.generation, 0U);
  EXPECT_EQ(operation_after(ReadShard{key_of(3)}).key, key_of(3));
  const std::vector<BlockKey> keys = {key_of(4), key_of(5)};
  const auto query = operation_after(QueryKeys{keys, std::chrono::milliseconds(99)});
  EXPECT_EQ(query.keys, keys);
  EXPECT_EQ(query.lease, std::chrono::milliseconds(99));
  const auto touch = operation_after(TouchKeys{keys, TtlClass::kChatbot});
  EXPECT_EQ(touch.keys, keys);
  EXPECT_EQ(touch.ttl, TtlClass::kChatbot);
  const auto list = operation_after(ListShards{key_of(6), false, 17});
  EXPECT_EQ(list.after, key_of(6));
  EXPECT_FALSE(list.from_start);
  EXPECT_EQ(list.limit, 17U);
  EXPECT_TRUE(operation_after(ListShards{{}, true, 17}).from_start);
  // A key of zeros is a key.
  EXPECT_FALSE(operation_after(ListShards{{}, false, 17}).from_start);
  EXPECT_EQ(operation_after(RepairShard{key_of(7)}).key, key_of(7));
}

TEST(WireCodec, AReplyComesBackWhole) {
  const ShardReply sent{.result = ShardResult::kBadShard,
                        .message = "m",
                        .map_epoch = 5,
                        .defect = ShardDefect::kChecksum,
                        .generation = 9,
                        .is_published = true,
                        .shard = {std::byte{1}, std::byte{0}},
                        .present = {true, false, true},
                        .listed = {{.key = key_of(8),
                                    .generation = 3,
                                    .is_published = true,
                                    .ttl = TtlClass::kChatbot,
                                    .depth = 4,
                                    .touch_minute = 5}},
                        .is_end = true};
  proto::v1::ShardReplyItem item;
  encode_reply(sent, 11, item);
  proto::v1::ShardReplyItem received;
  ASSERT_TRUE(received.ParseFromString(item.SerializeAsString()));
  EXPECT_EQ(received.request_id(), 11U);
  const auto reply = decode_reply(5, received);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->result, sent.result);
  EXPECT_EQ(reply->message, sent.message);
  EXPECT_EQ(reply->map_epoch, sent.map_epoch);
  EXPECT_EQ(reply->defect, sent.defect);
  EXPECT_EQ(reply->generation, sent.generation);
  EXPECT_TRUE(reply->is_published);
  EXPECT_EQ(reply->shard, sent.shard);
  EXPECT_EQ(reply->present, sent.present);
  EXPECT_EQ(reply->listed, sent.listed);
  EXPECT_TRUE(reply->is_end);
}

TEST(WireCodec, OtherVersionsAreNamed) {
  proto::v1::ShardRequestBatch batch;
  begin_batch(request_of(ReadShard{}), batch);
  batch.set_protocol_version(77);
  const absl::Status protocol = check_versions(batch);
  EXPECT_EQ(protocol.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(message_of(protocol),
            str_cat("the client speaks protocol version 77, this storage node ", kProtocolVersion));
  begin_batch(request_of(ReadShard{}), batch);
  batch.set_shard_layout_version(0);
  EXPECT_EQ(message_of(check_versions(batch)),
            "the client uses shard layout version 0, this storage node 1");
}

TEST(WireCodec, WhatCannotBeReadIsNamed) {
  const proto::v1::ShardRequestBatch batch;
  const auto decode = [&](const std::function<void(proto::v1::ShardRequestItem&)>& fill) {
    proto::v1::ShardRequestItem item;
    fill(item);
    const auto decoded = decode_request(batch, item);
    EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(message_of(decoded.status()));
  };
  using Item = proto::v1::ShardRequestItem;
  EXPECT_EQ(decode([](Item&) {}), "a request without an operation that is known here");
  EXPECT_EQ(decode([](Item& item) { item.set_read_key(std::string(31, 'k')); }),
            "a block key of 31 bytes, 32 is possible");
  EXPECT_EQ(decode([](Item& item) { item.set_repair_key(""); }),
            "a block key of 0 bytes, 32 is possible");
  EXPECT_EQ(decode([](Item& item) { item.mutable_query()->set_keys(std::string(33, 'k')); }),
            "block keys of 33 bytes: a multiple of 32, at most 4096 keys, is possible");
  EXPECT_EQ(decode([](Item& item) {
              item.mutable_query()->set_keys(std::string(std::size_t{32} * 4097, 'k'));
            }),
            "block keys of 131104 bytes: a multiple of 32, at most 4096 keys, is possible");
  EXPECT_EQ(decode([](Item& item) { item.mutable_touch()->set_ttl_class(2); }),
            "TTL class 2, 0 and 1 are possible");
  EXPECT_EQ(decode([](Item& item) { item.mutable_list()->set_limit(0); }),
            "a list of 0 shards, 1 to 16384 is possible");
  EXPECT_EQ(decode([](Item& item) { item.mutable_publish()->set_key("short"); }),
            "a block key of 5 bytes, 32 is possible");
}

TEST(WireCodec, UnknownResultsOfANodeAreErrors) {
  proto::v1::ShardReplyItem item;
  item.set_result(13);
  EXPECT_FALSE(decode_reply(1, item).ok());
  item.set_result(0);
  item.set_defect(8);
  EXPECT_FALSE(decode_reply(1, item).ok());
  item.set_defect(0);
  item.add_listed()->set_key("short");
  EXPECT_FALSE(decode_reply(1, item).ok());
}

}  // namespace
}  // namespace millrace::storage::store
