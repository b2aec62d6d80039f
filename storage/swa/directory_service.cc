#include "storage/swa/directory_service.h"

#include <grpcpp/grpcpp.h>

#include <array>
#include <chrono>
#include <cstring>
#include <mutex>
#include <utility>

#include "api/proto/swa.grpc.pb.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/types.h"
#include "storage/swa/location_wire.h"

namespace millrace::storage::swa {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kKeyBytes = sizeof(BlockKey::bytes);

grpc::Status check_version(std::uint32_t version) {
  if (version == kProtocolVersion) return grpc::Status::OK;
  return {grpc::StatusCode::FAILED_PRECONDITION,
          str_cat("the caller speaks protocol ", version, ", this entrypoint ", kProtocolVersion)};
}

grpc::Status refuse(const std::string& message) {
  return {grpc::StatusCode::INVALID_ARGUMENT, message};
}

std::vector<std::string> put_names() {
  std::vector<std::string> names;
  names.reserve(kDirectoryPuts);
  for (int i = 0; i < kDirectoryPuts; ++i) {
    names.emplace_back(directory_put_name(static_cast<DirectoryPut>(i)));
  }
  return names;
}

/// The shard.
class Shard {
 public:
  Shard(const WindowDirectoryLimits& limits, Registry& registry)
      : directory_(limits),
        entries_(registry.gauge("millrace_swa_directory_entries",
                                "Windows that this shard of the directory knows.")),
        puts_(registry.counter("millrace_swa_directory_puts_total",
                               "Entries put into this shard of the directory, by what became of "
                               "them.",
                               {{"outcome", put_names()}})),
        gets_(registry.counter("millrace_swa_directory_gets_total",
                               "Keys that this shard of the directory was asked for.",
                               {{"outcome", {"found", "missing"}}})) {}

  void put(std::span<const DirectoryEntry> entries) {
    std::array<std::size_t, kDirectoryPuts> outcomes{};
    std::size_t size = 0;
    {
      std::lock_guard lock(mutex_);
      const TimePoint now = Clock::now();
      for (const DirectoryEntry& entry : entries) {
        ++outcomes[static_cast<std::size_t>(directory_.put(entry.key, entry.at, now))];
      }
      size = directory_.size();
    }
    for (int i = 0; i < kDirectoryPuts; ++i) {
      puts_.with({directory_put_name(static_cast<DirectoryPut>(i))})
          .add(static_cast<double>(outcomes[static_cast<std::size_t>(i)]));
    }
    entries_.set(static_cast<double>(size));
  }

  std::vector<std::optional<WindowLocation>> get(std::span<const BlockKey> keys) {
    std::vector<std::optional<WindowLocation>> found;
    found.reserve(keys.size());
    std::size_t size = 0;
    {
      std::lock_guard lock(mutex_);
      const TimePoint now = Clock::now();
      for (const BlockKey& key : keys) found.push_back(directory_.get(key, now));
      size = directory_.size();
    }
    std::size_t known = 0;
    for (const auto& at : found) known += at.has_value();
    gets_.with({"found"}).add(static_cast<double>(known));
    gets_.with({"missing"}).add(static_cast<double>(found.size() - known));
    entries_.set(static_cast<double>(size));
    return found;
  }

 private:
  std::mutex mutex_;
  WindowDirectory directory_;  // guarded by mutex_
  const Gauge entries_;
  const MetricFamily<Counter> puts_;
  const MetricFamily<Counter> gets_;
};

class Service final : public proto::v1::KvDirectory::CallbackService {
 public:
  explicit Service(Shard& shard) : shard_(shard) {}

  grpc::ServerUnaryReactor* Put(grpc::CallbackServerContext* context,
                                const proto::v1::PutKvWindows* request,
                                proto::v1::PutKvWindowsReply*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(take(*request));
    return reactor;
  }

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const proto::v1::GetKvWindows* request,
                                proto::v1::KvWindowPlaces* reply) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(answer(*request, *reply));
    return reactor;
  }

 private:
  grpc::Status take(const proto::v1::PutKvWindows& request) {
    if (grpc::Status status = check_version(request.protocol_version()); !status.ok()) {
      return status;
    }
    const auto count = static_cast<std::size_t>(request.entries_size());
    if (count > kMaxPutEntries) {
      return refuse(str_cat("entries has ", count, " elements; ", kMaxPutEntries, " are allowed"));
    }
    std::vector<DirectoryEntry> entries(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto& wire = request.entries(static_cast<int>(i));
      if (wire.key().size() != kKeyBytes) {
        return refuse(
            str_cat("entries[", i, "].key has ", wire.key().size(), " bytes, not ", kKeyBytes));
      }
      std::memcpy(entries[i].key.bytes.data(), wire.key().data(), kKeyBytes);
      entries[i].at = from_wire(wire.ref());
    }
    shard_.put(entries);
    return grpc::Status::OK;
  }

  grpc::Status answer(const proto::v1::GetKvWindows& request, proto::v1::KvWindowPlaces& reply) {
    if (grpc::Status status = check_version(request.protocol_version()); !status.ok()) {
      return status;
    }
    const std::string& wire = request.keys();
    if (wire.size() % kKeyBytes != 0 || wire.size() / kKeyBytes > kMaxGetKeys) {
      return refuse(str_cat("keys has ", wire.size(), " bytes; allowed are multiples of ",
                            kKeyBytes, " up to ", kMaxGetKeys * kKeyBytes));
    }
    std::vector<BlockKey> keys(wire.size() / kKeyBytes);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      std::memcpy(keys[i].bytes.data(), wire.data() + i * kKeyBytes, kKeyBytes);
    }
    const auto found = shard_.get(keys);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!found[i]) continue;
      auto& place = *reply.add_places();
      place.set_index(static_cast<std::uint32_t>(i));
      to_wire(*found[i], *place.mutable_ref());
    }
    return grpc::Status::OK;
  }

  Shard& shard_;
};

class GrpcDirectoryService final : public DirectoryService {
 public:
  GrpcDirectoryService(const WindowDirectoryLimits& limits, Registry& registry)
      : shard_(limits, registry), service_(shard_) {}
  ~GrpcDirectoryService() override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  absl::Status listen(const std::string& address) {
    grpc::ServerBuilder builder;
    int port = 0;
    // Two processes at one port would share its connections between them.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    builder.SetMaxReceiveMessageSize(kMaxDirectoryMessageBytes);
    grpc::ResourceQuota quota("swa-directory");
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
  void put(std::span<const DirectoryEntry> entries) override { shard_.put(entries); }
  std::vector<std::optional<WindowLocation>> get(std::span<const BlockKey> keys) override {
    return shard_.get(keys);
  }

 private:
  Shard shard_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DirectoryService>> DirectoryService::start(
    const DirectoryServiceOptions& options, Registry& registry) {
  auto service = std::make_unique<GrpcDirectoryService>(options.limits, registry);
  RETURN_IF_ERROR(service->listen(options.listen_address));
  return std::unique_ptr<DirectoryService>(std::move(service));
}

}  // namespace millrace::storage::swa
