#pragma once

#include <cstddef>
#include <memory>

#include "storage/fetch/window_peers.h"

namespace millrace::storage::fetch {

/// Other machines over gRPC: a connection to each address, kept for the next read. Of the most
/// recently used `max_connections` addresses; so many machines hand windows to one at a time only
/// in a cluster far larger.
std::unique_ptr<WindowPeers> make_grpc_window_peers(std::size_t max_connections = 1024);

}  // namespace millrace::storage::fetch
