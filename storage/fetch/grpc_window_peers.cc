#include "storage/fetch/grpc_window_peers.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "api/proto/swa.grpc.pb.h"
#include "common/types.h"
#include "storage/ec/crc32c.h"
#include "storage/swa/client_calls.h"

namespace millrace::storage::fetch {
namespace {

using proto::v1::KvWindows;
using swa::WindowMiss;

/// A machine that cannot be reached is tried again after so long, doubled up to the second.
constexpr int kFirstBackoffMs = 50;
constexpr int kLongestBackoffMs = 2000;
/// What surrounds a window in its message.
constexpr int kMessageOverheadBytes = 4096;

WindowMiss miss_of(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return WindowMiss::kDeadline;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return WindowMiss::kBusy;
    default:
      return WindowMiss::kUnreachable;
  }
}

/// One read. Owns itself while gRPC has it.
struct Call {
  std::shared_ptr<Call> self;
  std::shared_ptr<KvWindows::Stub> stub;
  swa::WindowLocation from;
  WindowPeers::Done done;
  grpc::ClientContext context;
  proto::v1::ReadKvWindow request;
  proto::v1::KvWindow reply;
};

/// What is not exactly what was asked for is nothing.
PeerWindow result_of(const Call& call, const grpc::Status& status) {
  if (!status.ok()) return {.miss = miss_of(status), .window = {}};
  if (call.reply.outcome_case() == proto::v1::KvWindow::kMiss &&
      call.reply.miss() < swa::kWindowMisses) {
    return {.miss = static_cast<WindowMiss>(call.reply.miss()), .window = {}};
  }
  const auto& window = call.reply.window();
  const auto bytes = std::as_bytes(std::span(window.data()));
  const bool is_asked =
      window.key() == call.request.key() && window.incarnation() == call.from.incarnation &&
      window.slot() == call.from.slot && window.generation() == call.from.generation &&
      bytes.size() == call.from.bytes;
  if (!is_asked || ec::crc32c(bytes) != window.crc()) {
    return {.miss = WindowMiss::kCorrupt, .window = {}};
  }
  return {.miss = std::nullopt, .window = {bytes.begin(), bytes.end()}};
}

class GrpcWindowPeers final : public WindowPeers {
 public:
  explicit GrpcWindowPeers(std::size_t max_connections) : max_connections_(max_connections) {}
  ~GrpcWindowPeers() override { calls_.end_all(); }

  void read(const swa::WindowLocation& from, const BlockKey& key, std::chrono::milliseconds timeout,
            Done done) override {
    auto call = std::make_shared<Call>();
    call->stub = stub_of(from.address);
    call->from = from;
    call->done = std::move(done);
    call->context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                            gpr_time_from_millis(timeout.count(), GPR_TIMESPAN)));
    call->request.set_protocol_version(kProtocolVersion);
    call->request.set_key(key.bytes.data(), key.bytes.size());
    call->request.set_incarnation(from.incarnation);
    call->request.set_slot(from.slot);
    call->request.set_generation(from.generation);
    call->request.set_bytes(from.bytes);
    if (!calls_.begin({call, &call->context})) {
      return call->done(result_of(*call, grpc::Status::CANCELLED));
    }
    Call* const started = call.get();
    started->self = std::move(call);
    started->stub->async()->Read(&started->context, &started->request, &started->reply,
                                 [this, started](const grpc::Status& status) {
                                   calls_.forget(started->context);
                                   auto owned = std::move(started->self);
                                   owned->done(result_of(*owned, status));
                                   owned.reset();
                                   calls_.end_one();
                                 });
  }

 private:
  struct Peer {
    std::shared_ptr<KvWindows::Stub> stub;
    std::uint64_t last_use = 0;
  };

  std::shared_ptr<KvWindows::Stub> stub_of(const std::string& address) {
    std::lock_guard lock(mutex_);
    auto found = peers_.find(address);
    if (found == peers_.end()) {
      if (peers_.size() >= max_connections_) {
        peers_.erase(std::min_element(
            peers_.begin(), peers_.end(),
            [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
      }
      found = peers_.emplace(address, Peer{.stub = connect(address)}).first;
    }
    found->second.last_use = ++uses_;
    return found->second.stub;
  }

  static std::shared_ptr<KvWindows::Stub> connect(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxWindowBytes) + kMessageOverheadBytes);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstBackoffMs);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kFirstBackoffMs);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestBackoffMs);
    return KvWindows::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }

  const std::size_t max_connections_;
  std::mutex mutex_;
  std::map<std::string, Peer> peers_;  // guarded by mutex_
  std::uint64_t uses_ = 0;             // guarded by mutex_
  swa::ClientCalls calls_;
};

}  // namespace

std::unique_ptr<WindowPeers> make_grpc_window_peers(std::size_t max_connections) {
  return std::make_unique<GrpcWindowPeers>(max_connections);
}

}  // namespace millrace::storage::fetch
