#pragma once

#include <memory>

#include "dataplane/transfer/export_table.h"
#include "dataplane/transfer/identity.h"

namespace grpc {
class Service;
}

namespace millrace::dataplane::transfer {

/// Largest piece of KV in one message.
inline constexpr std::size_t kKvChunkBytes = std::size_t{1} << 20;

/// The gRPC service KvTransfer over a table of exports: Fetch streams an export's bytes, Release
/// drops it. A peer with another identity is refused (FAILED_PRECONDITION); an export that is not
/// here is NOT_FOUND. `exports` must outlive the service.
std::unique_ptr<grpc::Service> make_kv_service(const PeerIdentity& identity, ExportTable& exports);

}  // namespace millrace::dataplane::transfer
