#include "dataplane/transfer/kv_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "api/proto/engine.grpc.pb.h"
#include "common/annotate.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

#include "dataplane/transfer/kv_service.h"
#include "storage/ec/crc32c.h"

namespace millrace::dataplane::transfer {
namespace {

/// Connections kept to sources. A cluster has fewer prefill workers than that per decode worker, or
/// pays a new connection now and then.
constexpr std::size_t kMaxChannels = 64;

absl::Status verify(const Handover& handover, std::span<const std::byte> bytes) {
  const std::uint32_t checksum = storage::ec::crc32c(bytes);
  if (checksum == handover.checksum) return absl::OkStatus();
  return absl::DataLossError(str_cat("hand-over ", handover.export_id, " of ",
                                     handover.source_worker, ": checksum ", checksum,
                                     ", announced was ", handover.checksum));
}

/// What the failure of a stream means to the request.
absl::Status from_grpc(const grpc::Status& status, const Handover& handover) {
  const std::string context = str_cat("fetching the hand-over from ", handover.source_worker,
                                      " at ", handover.source_address);
  switch (status.error_code()) {
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::CANCELLED:
      return annotate(
          {static_cast<absl::StatusCode>(status.error_code()), to_absl(status.error_message())},
          context);
    default:
      // Gone, dropped, too slow or broken: to the request it is one thing, the KV is not there.
      return absl::UnavailableError(str_cat(context, ": ", status.error_message()));
  }
}

}  // namespace

std::span<const std::byte> KvBytes::bytes() const {
  if (const auto* region = std::get_if<SharedRegion>(&storage_)) return region->bytes();
  return std::get<std::vector<std::byte>>(storage_);
}

FetchPath KvBytes::path() const {
  return std::holds_alternative<SharedRegion>(storage_) ? FetchPath::kSharedMemory
                                                        : FetchPath::kStream;
}

struct KvClient::Channels {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<grpc::Channel>> by_address;  // guarded by mutex

  std::shared_ptr<grpc::Channel> get(const std::string& address) {
    std::lock_guard lock(mutex);
    const auto found = by_address.find(address);
    if (found != by_address.end()) return found->second;
    if (by_address.size() >= kMaxChannels) by_address.clear();
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(static_cast<int>(kKvChunkBytes) + 4096);
    // A source that restarts on the same address must be found again soon.
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
    auto channel =
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    by_address.emplace(address, channel);
    return channel;
  }
};

KvClient::KvClient(Options options)
    : options_(std::move(options)), channels_(std::make_unique<Channels>()) {}
KvClient::~KvClient() = default;

absl::StatusOr<KvBytes> KvClient::fetch(const Handover& handover, std::chrono::milliseconds timeout,
                                        const CancelFlag& cancel) {
  if (handover.bytes == 0 || handover.bytes > options_.max_bytes) {
    return absl::InvalidArgumentError(str_cat(
        "a hand-over of ", handover.bytes, " bytes: this worker takes 1 to ", options_.max_bytes));
  }
  if (handover.host_id != options_.host_id) return fetch_stream(handover, timeout, cancel);

  absl::StatusOr<SharedRegion> region = SharedRegion::open(handover.shm_name, handover.bytes);
  if (absl::IsNotFound(region.status())) {
    return absl::UnavailableError(
        str_cat("the hand-over of ", handover.source_worker, " is gone from shared memory"));
  }
  if (!region.ok()) return region.status();
  RETURN_IF_ERROR(verify(handover, region->bytes()));
  return KvBytes(*std::move(region));
}

absl::StatusOr<KvBytes> KvClient::fetch_stream(const Handover& handover,
                                               std::chrono::milliseconds timeout,
                                               const CancelFlag& cancel) {
  auto stub = proto::v1::KvTransfer::NewStub(channels_->get(handover.source_address));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::min(timeout, options_.fetch_timeout));
  proto::v1::FetchKv request;
  request.mutable_identity()->set_protocol_version(options_.identity.protocol_version);
  request.mutable_identity()->set_model_id(options_.identity.model_id);
  request.mutable_identity()->set_artifact_digest(options_.identity.artifact_digest);
  request.set_export_id(handover.export_id);
  auto reader = stub->Fetch(&context, request);

  // Grows with what arrives: a size that a peer merely announces allocates nothing.
  std::vector<std::byte> bytes;
  proto::v1::KvChunk chunk;
  absl::Status problem;
  while (reader->Read(&chunk)) {
    const std::string& data = chunk.data();
    if (cancel.load()) {
      problem = absl::CancelledError("the fetch is no longer wanted");
    } else if (chunk.offset() != bytes.size() || data.size() > handover.bytes - bytes.size()) {
      problem = absl::DataLossError(str_cat("hand-over ", handover.export_id, ": bytes at ",
                                            chunk.offset(), " do not follow byte ", bytes.size(),
                                            " of ", handover.bytes));
    }
    if (!problem.ok()) {
      context.TryCancel();
      break;
    }
    const std::size_t old_size = bytes.size();
    bytes.resize(old_size + data.size());
    std::memcpy(bytes.data() + old_size, data.data(), data.size());
  }
  const grpc::Status status = reader->Finish();
  RETURN_IF_ERROR(problem);
  if (!status.ok()) return from_grpc(status, handover);
  if (bytes.size() != handover.bytes) {
    return absl::DataLossError(str_cat("hand-over ", handover.export_id, ": ", bytes.size(),
                                       " bytes came, announced were ", handover.bytes));
  }
  RETURN_IF_ERROR(verify(handover, bytes));
  return KvBytes(std::move(bytes));
}

absl::Status KvClient::release(const std::string& source_address, std::uint64_t export_id) {
  auto stub = proto::v1::KvTransfer::NewStub(channels_->get(source_address));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + options_.release_timeout);
  proto::v1::ReleaseKv request;
  request.set_export_id(export_id);
  proto::v1::ReleaseKvReply reply;
  const grpc::Status status = stub->Release(&context, request, &reply);
  if (status.ok()) return absl::OkStatus();
  return absl::UnavailableError(str_cat("releasing export ", export_id, " at ", source_address,
                                        ": ", status.error_message()));
}

}  // namespace millrace::dataplane::transfer
