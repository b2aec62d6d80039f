#pragma once

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/wire/messages.h"

namespace millrace::proto::v1 {
class ShardRequestBatch;
class ShardRequestItem;
class ShardReplyBatch;
class ShardReplyItem;
}  // namespace millrace::proto::v1

namespace millrace::storage::store {

/// Between the values of storage/wire/messages.h and the messages of api/proto/storage.proto, for
/// both ends of a stream. Whatever comes in is checked here: sizes, counts, enumerators.

/// Fills in what holds for a whole batch: versions, and cluster and epoch of its first request.
void begin_batch(const ShardRequest& first, proto::v1::ShardRequestBatch& batch);
/// Whether a request may travel in that batch: cluster and epoch are the batch's.
bool belongs_to(const ShardRequest& request, const proto::v1::ShardRequestBatch& batch);
/// kFailedPrecondition: another protocol or layout version; both values are named.
absl::Status check_versions(const proto::v1::ShardRequestBatch& batch);

/// `deadline` is the time left now.
void encode_request(ShardRequest request, std::uint64_t request_id,
                    std::chrono::milliseconds deadline, proto::v1::ShardRequestItem& item);
/// Takes the bytes out of the item. kInvalidArgument names what cannot be read.
absl::StatusOr<ShardRequest> decode_request(const proto::v1::ShardRequestBatch& batch,
                                            proto::v1::ShardRequestItem& item);

void encode_reply(ShardReply reply, std::uint64_t request_id, proto::v1::ShardReplyItem& item);
/// Takes the bytes out of the item. An enumerator or key that cannot be is an error
/// (kInvalidArgument).
absl::StatusOr<ShardReply> decode_reply(std::uint64_t map_epoch, proto::v1::ShardReplyItem& item);

/// About how many bytes it takes on the wire: for batches and queues.
std::size_t wire_bytes(const ShardRequest& request);
std::size_t wire_bytes(const ShardReply& reply);

}  // namespace millrace::storage::store
