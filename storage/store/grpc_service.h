#pragma once

#include <cstddef>
#include <memory>

#include "storage/wire/messages.h"

namespace grpc {
class ServerBuilder;
class Service;
}  // namespace grpc

namespace millrace::storage::store {

/// Largest message of an Exchange stream, in bytes. A batch is about kMaxBatchBytes, or one block
/// alone.
inline constexpr int kMaxMessageBytes = 8 << 20;
inline constexpr std::size_t kMaxBatchBytes = std::size_t{1} << 20;

struct StorageServiceOptions {
  /// Requests of one stream that the endpoint has not answered yet; more are answered kBusy.
  std::size_t max_requests_in_flight = 4096;
  /// Reply bytes of one stream that wait for a slow client; more become kBusy without their shard.
  std::size_t max_waiting_reply_bytes = std::size_t{64} << 20;
};

/// The node's end of api/proto/storage.proto: hands what comes on a stream to the endpoint, one
/// request after the other and in order, and sends replies as they come, many in a message. A
/// stream of another protocol or layout version is refused with both values named
/// (FAILED_PRECONDITION); the cluster, map and target of a request are the endpoint's to judge. A
/// request that cannot be read is answered kInvalid.
///
/// The endpoint must outlive the service and the server that it is registered with; its replies may
/// come after both are gone, and go nowhere then. A handle() that is called after the client went
/// away does no harm: shards are idempotent.
std::unique_ptr<grpc::Service> make_storage_service(ShardEndpoint& endpoint,
                                                    const StorageServiceOptions& options = {});

/// What a server of this service needs: its message size, and leave for clients to ask whether it
/// is alive (they give up a connection to a frozen node).
void configure_storage_server(grpc::ServerBuilder& builder);

}  // namespace millrace::storage::store
