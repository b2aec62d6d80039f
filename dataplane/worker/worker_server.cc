#include "dataplane/worker/worker_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "api/proto/engine.grpc.pb.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/routing/claim_desk.h"
#include "dataplane/transfer/kv_client.h"
#include "dataplane/transfer/kv_service.h"
#include "dataplane/worker/core.h"
#include "dataplane/worker/engine_loop.h"
#include "dataplane/worker/importer.h"
#include "dataplane/worker/kv_link.h"
#include "dataplane/worker/session.h"

namespace millrace::dataplane::worker {
namespace {

using Clock = std::chrono::steady_clock;

/// How long the destructor lets streams send what is queued.
constexpr auto kFlushTime = std::chrono::seconds(1);

/// A stream that is refused before it becomes a session.
class Refusal final
    : public grpc::ServerBidiReactor<proto::v1::EngineCommand, proto::v1::EngineEvents> {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

/// The sessions and their way to and from the engine thread.
class EngineService final : public proto::v1::Engine::CallbackService,
                            public BatchSink,
                            public Session::Owner {
 public:
  EngineService(const WorkerConfig& config, std::optional<KvNaming> naming, CommandQueue& commands,
                Registry& metrics, const Logger& log)
      : identity_(config.identity),
        naming_(std::move(naming)),
        commands_(commands),
        log_(log),
        streams_(metrics.gauge("millrace_streams_open", "Connect streams of entrypoints.")),
        claims_(metrics.counter("millrace_prefill_claims_total",
                                "Requests that this worker asked entrypoints for.")),
        gone_claims_(metrics.counter("millrace_prefill_claims_gone_total",
                                     "Of those, that another worker got.")),
        load_{.kv_blocks_total = config.limits.kv_blocks},
        desk_(claim_limits(config.limits)),
        heartbeats_([this] { send_heartbeats(); }) {
    if (config.role != Role::kPrefill) desk_.stop();
  }

  ~EngineService() override {
    {
      std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    stop_.notify_all();
    heartbeats_.join();
  }

  // ---- gRPC's threads

  grpc::ServerBidiReactor<proto::v1::EngineCommand, proto::v1::EngineEvents>* Connect(
      grpc::CallbackServerContext*) override {
    std::shared_ptr<Session> session;
    {
      std::lock_guard lock(mutex_);
      if (!is_stopping_ && slots_used_ < kMaxStreams) {
        const StreamId stream = next_stream_++;
        session = std::make_shared<Session>(stream, identity_, naming_, commands_, *this, log_);
        sessions_.emplace(stream, session);
        ++slots_used_;
        streams_.set(slots_used_);
      }
    }
    if (session == nullptr) {
      return new Refusal({grpc::StatusCode::RESOURCE_EXHAUSTED,
                          str_cat("this worker serves ", kMaxStreams, " streams already")});
    }
    session->begin();
    return session.get();
  }

  Load current_load() const override {
    std::lock_guard lock(mutex_);
    return load_;
  }

  bool wants_more() const override {
    std::lock_guard lock(mutex_);
    return desk_.wants_more();
  }

  void on_cost(const cost::CostModel& published) override {
    {
      std::lock_guard lock(mutex_);
      published_cost_ = published;
    }
    commands_.push_control(PublishedCost{published});
  }

  void on_offers(StreamId stream, const StreamOffers& offers) override {
    {
      std::lock_guard lock(mutex_);
      desk_.serve(offers.serves, offers.view_version);
      desk_.offer(stream, offers.offers);
      desk_.gone(stream, offers.answered_claim);
    }
    if (offers.answered_claim != 0) gone_claims_.add();
    claim();
  }

  void on_granted(StreamId stream, std::uint64_t claim) override {
    std::lock_guard lock(mutex_);
    desk_.grant(stream, claim);
  }

  void on_coming(StreamId stream, const cost::Chunk& work) override {
    {
      std::lock_guard lock(mutex_);
      desk_.coming(stream, cost::quota_ns(load_.prefill_cost.value_or(published_cost_), work));
    }
    claim();
  }

  void on_not_coming(StreamId stream) override {
    {
      std::lock_guard lock(mutex_);
      desk_.not_coming(stream);
    }
    claim();
  }

  void on_done(StreamId stream, bool was_opened) override {
    {
      std::lock_guard lock(mutex_);
      sessions_.erase(stream);
      desk_.close(stream);
    }
    claim();
    // The slot stays taken until the engine has let go of everything, so that streams opened and
    // closed in a hurry cannot pile up commands.
    if (was_opened) {
      commands_.push_control(CloseStream{stream});
    } else {
      on_stream_closed(stream);
    }
  }

  // ---- the engine thread

  void deliver(std::vector<StreamBatch> batches, Load load) override {
    std::vector<std::pair<std::shared_ptr<Session>, StreamBatch>> targets;
    {
      std::lock_guard lock(mutex_);
      load_ = load;
      if (load.is_draining) desk_.stop();
      desk_.set_queued(load.queued_ns, load.waiting);
      desk_.set_held_up(load.is_holding);
      for (const StreamBatch& batch : batches) desk_.taken_up(batch.stream, batch.started_requests);
      load.wants_more = desk_.wants_more();
      for (StreamBatch& batch : batches) {
        const auto found = sessions_.find(batch.stream);
        if (found != sessions_.end()) targets.emplace_back(found->second, std::move(batch));
      }
    }
    for (const auto& [session, batch] : targets) session->push(batch, load);
    claim();
  }

  void on_stream_closed(StreamId) override {
    std::lock_guard lock(mutex_);
    --slots_used_;
    streams_.set(slots_used_);
    stop_.notify_all();
  }

  // ---- the owner's thread

  /// Ends every stream once its outbox is sent, refuses new ones, waits a little for the ends.
  void shut_down() {
    std::unique_lock lock(mutex_);
    is_stopping_ = true;
    stop_.notify_all();
    std::vector<std::shared_ptr<Session>> sessions;
    for (const auto& [stream, session] : sessions_) sessions.push_back(session);
    lock.unlock();
    for (const auto& session : sessions) {
      session->end({grpc::StatusCode::UNAVAILABLE, "this worker stops"});
    }
    sessions.clear();
    lock.lock();
    stop_.wait_for(lock, kFlushTime, [&] { return sessions_.empty(); });
  }

 private:
  static routing::ClaimLimits claim_limits(const scheduler::SchedulerLimits& limits) {
    // Two steps: the rank never waits for a request, and hardly a request for the rank.
    return {.quota_per_rank_ns = static_cast<std::int64_t>(2 * limits.step_budget_ns),
            .max_requests = limits.max_waiting};
  }

  /// Asks for the next request, if there is room for one and somebody offers it.
  void claim() {
    std::optional<routing::ClaimDesk::Claim> claim;
    std::shared_ptr<Session> session;
    {
      std::lock_guard lock(mutex_);
      claim = desk_.next_claim(Clock::now());
      if (!claim) return;
      const auto found = sessions_.find(claim->stream);
      if (found != sessions_.end()) session = found->second;
    }
    if (session == nullptr) return;  // its end is on its way, and with it that of the claim
    claims_.add();
    session->claim(*claim);
  }

  void send_heartbeats() {
    std::unique_lock lock(mutex_);
    while (!is_stopping_) {
      // Twice per interval, so that the silence of a stream stays under twice the interval.
      stop_.wait_for(lock, kHeartbeatInterval / 2);
      std::vector<std::shared_ptr<Session>> sessions;
      for (const auto& [stream, session] : sessions_) sessions.push_back(session);
      lock.unlock();
      claim();
      const auto now = Clock::now();
      for (const auto& session : sessions) session->heartbeat(now);
      sessions.clear();
      lock.lock();
    }
  }

  const transfer::PeerIdentity identity_;
  const std::optional<KvNaming> naming_;
  CommandQueue& commands_;
  const Logger log_;
  const Gauge streams_;
  const Counter claims_;
  const Counter gone_claims_;

  mutable std::mutex mutex_;  // guards all below but the thread
  std::condition_variable stop_;
  std::map<StreamId, std::shared_ptr<Session>> sessions_;
  StreamId next_stream_ = 1;
  int slots_used_ = 0;
  bool is_stopping_ = false;
  Load load_;
  cost::CostModel published_cost_ = cost::kUnmeasuredCost;
  routing::ClaimDesk desk_;
  std::thread heartbeats_;
};

class GrpcWorkerServer final : public WorkerServer {
 public:
  explicit GrpcWorkerServer(std::unique_ptr<engine::Engine> engine) : engine_(std::move(engine)) {}

  absl::Status open(const WorkerConfig& config, Registry& metrics, const Logger& log);

  ~GrpcWorkerServer() override {
    if (grpc_server_ != nullptr) {
      service_->shut_down();
      grpc_server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
      grpc_server_->Wait();
    }
    loop_.reset();
    kv_link_.reset();
    importer_.reset();
    grpc_server_.reset();
  }

  const std::string& address() const override { return address_; }
  void begin_drain() override { commands_.push_control(BeginDrain{}); }
  bool wait_drained(std::chrono::milliseconds timeout) override {
    return loop_->wait_drained(timeout);
  }

 private:
  absl::StatusOr<std::optional<KvNaming>> kv_naming(const WorkerConfig& config) const;
  absl::Status listen(const WorkerConfig& config);

  // In the order of their making; what comes later points to what comes earlier.
  std::unique_ptr<engine::Engine> engine_;
  CommandQueue commands_{CommandQueueLimits{}};
  std::unique_ptr<transfer::ExportTable> exports_;
  std::unique_ptr<grpc::Service> kv_service_;
  std::unique_ptr<EngineService> service_;
  std::unique_ptr<grpc::Server> grpc_server_;
  std::string address_;
  std::unique_ptr<transfer::KvClient> kv_client_;
  std::unique_ptr<Core> core_;
  std::unique_ptr<Importer> importer_;
  std::unique_ptr<KvLink> kv_link_;  // null without a KV store
  std::unique_ptr<EngineLoop> loop_;
};

absl::Status GrpcWorkerServer::open(const WorkerConfig& config, Registry& metrics,
                                    const Logger& log) {
  const api::admin::SharedMemoryOwner self{.host_id = config.host_id,
                                           .worker_id = config.worker_id};
  ASSIGN_OR_RETURN(exports_,
                   transfer::ExportTable::open(self, std::random_device{}(), config.exports));
  kv_service_ = transfer::make_kv_service(config.identity, *exports_);
  ASSIGN_OR_RETURN(std::optional<KvNaming> naming, kv_naming(config));
  service_ = std::make_unique<EngineService>(config, std::move(naming), commands_, metrics, log);
  RETURN_IF_ERROR(listen(config));
  kv_client_ = std::make_unique<transfer::KvClient>(
      transfer::KvClient::Options{.identity = config.identity,
                                  .host_id = config.host_id,
                                  .max_bytes = config.exports.max_bytes});
  ASSIGN_OR_RETURN(core_, Core::create({.role = config.role,
                                        .worker_id = config.worker_id,
                                        .host_id = config.host_id,
                                        .transfer_address = config.advertise_address.empty()
                                                                ? address_
                                                                : config.advertise_address,
                                        .eos_tokens = config.eos_tokens,
                                        .limits = config.limits,
                                        .prefill_cost = config.prefill_cost},
                                       *engine_, *exports_));
  importer_ = std::make_unique<Importer>(*kv_client_, commands_, metrics, log, Importer::Limits{});
  if (!config.kv_fetch.empty()) {
    kv_link_ = std::make_unique<KvLink>(
        [address = config.kv_fetch, id = config.worker_id] {
          return storage::fetch::FetchClient::connect({.address = address, .client_id = id});
        },
        static_cast<std::uint32_t>(engine_->block_bytes()), commands_, metrics, log,
        KvLink::Limits{});
  }
  loop_ = std::make_unique<EngineLoop>(*core_, commands_, *importer_, kv_link_.get(), *service_,
                                       *exports_, metrics, log);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<KvNaming>> GrpcWorkerServer::kv_naming(
    const WorkerConfig& config) const {
  if (config.kv_fetch.empty()) return std::nullopt;
  KvNaming naming{.artifact_digest = {}, .layout_id = engine_->kv_layout_id()};
  const std::string& digest = config.identity.artifact_digest;
  if (digest.size() != naming.artifact_digest.size()) {
    return absl::InvalidArgumentError(str_cat("an artifact digest of ", digest.size(), " bytes"));
  }
  std::copy(digest.begin(), digest.end(), naming.artifact_digest.begin());
  return naming;
}

absl::Status GrpcWorkerServer::listen(const WorkerConfig& config) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(config.listen_address, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service_.get());
  builder.RegisterService(kv_service_.get());
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  // Two workers on one port would share its connections silently.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A peer whose host vanished without a word is noticed by its missing pongs.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  grpc::ResourceQuota quota("worker");
  quota.SetMaxThreads(64);
  builder.SetResourceQuota(quota);
  grpc_server_ = builder.BuildAndStart();
  if (grpc_server_ == nullptr || port == 0) {
    return absl::UnavailableError(
        str_cat("cannot listen on ", config.listen_address, " (is the port in use?)"));
  }
  address_ = str_cat(config.listen_address.substr(0, config.listen_address.rfind(':')), ":", port);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::start(
    const WorkerConfig& config, std::unique_ptr<engine::Engine> engine, Registry& metrics,
    const Logger& log) {
  auto server = std::make_unique<GrpcWorkerServer>(std::move(engine));
  RETURN_IF_ERROR(server->open(config, metrics, log));
  return std::unique_ptr<WorkerServer>(std::move(server));
}

}  // namespace millrace::dataplane::worker
