#include "dataplane/transfer/kv_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <string>

#include "api/proto/engine.grpc.pb.h"

namespace millrace::dataplane::transfer {
namespace {

grpc::Status to_grpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

class KvService final : public proto::v1::KvTransfer::Service {
 public:
  KvService(const PeerIdentity& identity, ExportTable& exports)
      : identity_(identity), exports_(exports) {}

  grpc::Status Fetch(grpc::ServerContext* context, const proto::v1::FetchKv* request,
                     grpc::ServerWriter<proto::v1::KvChunk>* writer) override {
    const PeerIdentity theirs{.protocol_version = request->identity().protocol_version(),
                              .model_id = request->identity().model_id(),
                              .artifact_digest = request->identity().artifact_digest()};
    if (absl::Status status = check_identity(identity_, theirs); !status.ok()) {
      return to_grpc(status);
    }
    const auto region = exports_.find(request->export_id());
    if (!region.ok()) return to_grpc(region.status());
    const std::span<const std::byte> bytes = (*region)->bytes();
    proto::v1::KvChunk chunk;
    for (std::size_t offset = 0; offset < bytes.size(); offset += kKvChunkBytes) {
      const auto part = bytes.subspan(offset, std::min(kKvChunkBytes, bytes.size() - offset));
      chunk.set_offset(offset);
      chunk.set_data(part.data(), part.size());
      if (context->IsCancelled() || !writer->Write(chunk)) return grpc::Status::CANCELLED;
    }
    return grpc::Status::OK;
  }

  grpc::Status Release(grpc::ServerContext*, const proto::v1::ReleaseKv* request,
                       proto::v1::ReleaseKvReply*) override {
    // Releasing twice, or after the time to live, is no error: the peer wants it gone, and it is.
    exports_.release(request->export_id());
    return grpc::Status::OK;
  }

 private:
  const PeerIdentity identity_;
  ExportTable& exports_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_kv_service(const PeerIdentity& identity, ExportTable& exports) {
  return std::make_unique<KvService>(identity, exports);
}

}  // namespace millrace::dataplane::transfer
