#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "storage/wire/messages.h"

namespace millrace::storage::store {

struct GrpcTransportOptions {
  /// Per node: what may wait for the stream; further requests are answered kBusy.
  std::size_t max_outbox_bytes = std::size_t{64} << 20;
  std::size_t max_outbox_requests = 16384;
  /// A node that cannot be reached is left alone so long, doubled each time; meanwhile requests are
  /// answered kUnavailable.
  std::chrono::milliseconds first_backoff{50};
  std::chrono::milliseconds longest_backoff{2000};
  /// A connection without a sign of life is given up after the sum of both.
  std::chrono::milliseconds keepalive_interval{10000};
  std::chrono::milliseconds keepalive_timeout{5000};
};

/// All storage nodes over gRPC: one Exchange stream per address, opened at the first request and
/// again after a break. What waits for the stream goes out together, about kMaxBatchBytes at a
/// time. When a stream breaks, everything that was sent or waits is answered kUnavailable, with the
/// reason.
///
/// Destruction answers what is left as kUnavailable and returns when the last callback has.
std::unique_ptr<ShardTransport> make_grpc_transport(const GrpcTransportOptions& options = {});

}  // namespace millrace::storage::store
