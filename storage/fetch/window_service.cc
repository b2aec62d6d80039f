#include "storage/fetch/window_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "api/proto/swa.grpc.pb.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/types.h"
#include "storage/ec/crc32c.h"
#include "storage/fetch/window_types.h"
#include "storage/swa/window_miss.h"

namespace millrace::storage::fetch {
namespace {

using proto::v1::KvWindow;
using proto::v1::ReadKvWindow;
using swa::WindowMiss;

std::vector<std::string> outcome_names() {
  std::vector<std::string> names = {"served"};
  for (int i = 0; i < swa::kWindowMisses; ++i) {
    names.emplace_back(swa::window_miss_name(static_cast<WindowMiss>(i)));
  }
  return names;
}

/// One read until gRPC is done with it. Owned by itself, as gRPC wants it.
class Read final : public grpc::ServerUnaryReactor {
 public:
  Read(std::atomic<int>& under_way, const grpc::Status& status) : under_way_(under_way) {
    Finish(status);
  }
  void OnDone() override {
    --under_way_;
    delete this;
  }

 private:
  std::atomic<int>& under_way_;
};

class Service final : public proto::v1::KvWindows::CallbackService {
 public:
  Service(const WindowServiceConfig& config, ArenaReader windows, Registry& registry)
      : config_(config),
        windows_(std::move(windows)),
        requests_(registry.counter("millrace_swa_peer_requests_total",
                                   "Windows that other machines asked this one for, by what came "
                                   "of it.",
                                   {{"outcome", outcome_names()}})) {}

  grpc::ServerUnaryReactor* Read(grpc::CallbackServerContext*, const ReadKvWindow* request,
                                 KvWindow* reply) override {
    const bool is_admitted = ++under_way_ <= config_.max_reads;
    return new fetch::Read(under_way_, answer(*request, is_admitted, *reply));
  }

 private:
  grpc::Status answer(const ReadKvWindow& request, bool is_admitted, KvWindow& reply) {
    if (request.protocol_version() != kProtocolVersion) {
      return {grpc::StatusCode::FAILED_PRECONDITION,
              str_cat("the caller speaks protocol ", request.protocol_version(), ", this fetcher ",
                      kProtocolVersion)};
    }
    BlockKey key;
    if (request.key().size() != key.bytes.size()) {
      return {grpc::StatusCode::INVALID_ARGUMENT,
              str_cat("key has ", request.key().size(), " bytes, not ", key.bytes.size())};
    }
    std::memcpy(key.bytes.data(), request.key().data(), key.bytes.size());
    const auto miss = is_admitted ? read(request, key, reply) : WindowMiss::kBusy;
    requests_.with({miss ? swa::window_miss_name(*miss) : "served"}).add();
    if (miss) reply.set_miss(static_cast<std::uint32_t>(*miss));
    return grpc::Status::OK;
  }

  std::optional<WindowMiss> read(const ReadKvWindow& request, const BlockKey& key,
                                 KvWindow& reply) const {
    if (request.incarnation() != config_.incarnation) return WindowMiss::kOtherOwner;
    if (request.bytes() == 0 || request.bytes() > config_.window_bytes) return WindowMiss::kCorrupt;
    auto& window = *reply.mutable_window();
    std::string& data = *window.mutable_data();
    data.resize(request.bytes());
    const auto bytes = std::as_writable_bytes(std::span(data));
    const SlotRef ref{request.slot(), request.generation()};
    if (const absl::Status copied = windows_.copy_out(ref, key, bytes); !copied.ok()) {
      if (windows_.generation_of(ref.slot) != ref.generation) return WindowMiss::kRecycled;
      return absl::IsAborted(copied) ? WindowMiss::kExpired : WindowMiss::kCorrupt;
    }
    window.set_key(request.key());
    window.set_incarnation(request.incarnation());
    window.set_slot(ref.slot);
    window.set_generation(ref.generation);
    window.set_crc(ec::crc32c(bytes));
    return std::nullopt;
  }

  const WindowServiceConfig config_;
  const ArenaReader windows_;
  const MetricFamily<Counter> requests_;
  std::atomic<int> under_way_{0};
};

class GrpcWindowService final : public WindowService {
 public:
  GrpcWindowService(const WindowServiceConfig& config, ArenaReader windows, Registry& registry)
      : service_(config, std::move(windows), registry) {}
  ~GrpcWindowService() override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  absl::Status listen(const std::string& address) {
    grpc::ServerBuilder builder;
    int port = 0;
    // Two fetchers at one port would share its connections between them.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    grpc::ResourceQuota quota("kv-windows");
    quota.SetMaxThreads(8);
    builder.SetResourceQuota(quota);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      return absl::UnavailableError(str_cat("cannot listen at ", address));
    }
    address_ = str_cat(address.substr(0, address.rfind(':')), ":", port);
    return absl::OkStatus();
  }
  const std::string& address() const override { return address_; }

 private:
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WindowService>> WindowService::start(
    const WindowServiceConfig& config, ArenaReader windows, Registry& registry) {
  auto service = std::make_unique<GrpcWindowService>(config, std::move(windows), registry);
  RETURN_IF_ERROR(service->listen(config.listen_address));
  return std::unique_ptr<WindowService>(std::move(service));
}

}  // namespace millrace::storage::fetch
