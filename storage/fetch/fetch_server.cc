#include "storage/fetch/fetch_server.h"

#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/fetch/fetch_loop.h"
#include "storage/fetch/fetch_stream.h"
#include "storage/fetch/grpc_window_peers.h"
#include "storage/fetch/window_service.h"

namespace millrace::storage::fetch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kUnixPrefix = "unix:";
/// How long the destructor lets streams send what is queued.
constexpr auto kFlushTime = std::chrono::seconds(1);

/// A stream that is refused before it becomes a session.
class Refusal final
    : public grpc::ServerBidiReactor<proto::v1::KvFetchCommands, proto::v1::KvFetchEvents> {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

/// The streams and their way to and from the loop.
class FetchService final : public proto::v1::KvFetch::CallbackService,
                           public SessionSink,
                           public FetchStream::Owner {
 public:
  FetchService(Welcome welcome, EventQueue& queue, const Logger& log)
      : welcome_(std::move(welcome)), queue_(queue), log_(log) {}

  // ---- gRPC's threads

  grpc::ServerBidiReactor<proto::v1::KvFetchCommands, proto::v1::KvFetchEvents>* Connect(
      grpc::CallbackServerContext*) override {
    std::shared_ptr<FetchStream> stream;
    {
      std::lock_guard lock(mutex_);
      if (!is_stopping_ && slots_used_ < kMaxSessions) {
        const SessionId session = next_session_++;
        stream = std::make_shared<FetchStream>(session, welcome_, queue_, *this, log_);
        streams_.emplace(session, stream);
        ++slots_used_;
      }
    }
    if (stream == nullptr) {
      return new Refusal({grpc::StatusCode::RESOURCE_EXHAUSTED,
                          str_cat("this fetcher serves ", kMaxSessions, " engines already")});
    }
    stream->begin();
    return stream.get();
  }

  void on_done(SessionId session, bool was_opened) override {
    {
      std::lock_guard lock(mutex_);
      streams_.erase(session);
      stopped_.notify_all();
    }
    // The place stays taken until the loop has let go of everything, so that streams opened and
    // closed in a hurry cannot pile up events.
    was_opened ? queue_.push(SessionEnded{session}) : on_closed(session);
  }

  // ---- the loop's thread

  void deliver(SessionId session, std::vector<SessionEvent> events) override {
    if (const auto stream = find(session)) stream->push(events);
  }

  void refuse(SessionId session, const std::string& reason) override {
    log_.warn("session_refused", {{"session", session}, {"reason", reason}});
    if (const auto stream = find(session)) {
      stream->end({grpc::StatusCode::INVALID_ARGUMENT, reason});
    }
  }

  void on_closed(SessionId) override {
    std::lock_guard lock(mutex_);
    --slots_used_;
  }

  // ---- the owner's thread

  /// Ends every stream once its outbox is sent, refuses new ones, waits a little for the ends.
  void shut_down() {
    std::unique_lock lock(mutex_);
    is_stopping_ = true;
    std::vector<std::shared_ptr<FetchStream>> streams;
    streams.reserve(streams_.size());
    for (const auto& [session, stream] : streams_) streams.push_back(stream);
    lock.unlock();
    for (const auto& stream : streams) {
      stream->end({grpc::StatusCode::UNAVAILABLE, "this fetcher stops"});
    }
    streams.clear();
    lock.lock();
    stopped_.wait_for(lock, kFlushTime, [&] { return streams_.empty(); });
  }

 private:
  std::shared_ptr<FetchStream> find(SessionId session) {
    std::lock_guard lock(mutex_);
    const auto found = streams_.find(session);
    return found == streams_.end() ? nullptr : found->second;
  }

  const Welcome welcome_;
  EventQueue& queue_;
  const Logger log_;

  std::mutex mutex_;  // guards all below
  std::condition_variable stopped_;
  std::map<SessionId, std::shared_ptr<FetchStream>> streams_;
  SessionId next_session_ = 1;
  int slots_used_ = 0;
  bool is_stopping_ = false;
};

/// The path of a Unix socket that nobody listens at.
absl::StatusOr<std::string> socket_path(const std::string& address) {
  const std::string path =
      address.starts_with(kUnixPrefix) ? address.substr(kUnixPrefix.size()) : "";
  sockaddr_un name{};
  if (path.empty() || path.size() >= sizeof(name.sun_path)) {
    return absl::InvalidArgumentError(
        str_cat("\"", address, "\" is no address of a Unix socket: unix:/path with at most ",
                sizeof(name.sun_path) - 1, " characters of path"));
  }
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), path.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "socket");
  const bool is_taken = ::connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0;
  ::close(fd);
  if (!is_taken) return path;
  return absl::FailedPreconditionError(str_cat("another process listens at ", address));
}

absl::StatusOr<Arena> make_arena(const FetchServerConfig& config, ArenaKind kind, std::size_t bytes,
                                 std::uint32_t block_bytes) {
  const std::uint32_t slots = arena_slots(bytes, block_bytes);
  if (slots == 0) {
    return absl::InvalidArgumentError(str_cat("an arena of ", bytes, " bytes holds no ",
                                              kind == ArenaKind::kWindow ? "window" : "block",
                                              " of ", block_bytes, " bytes"));
  }
  return Arena::create({.host_id = config.host_id,
                        .kind = kind,
                        .incarnation = config.incarnation,
                        .slot_count = slots,
                        .block_bytes = block_bytes});
}

/// Nothing when no windows are wanted.
absl::StatusOr<std::optional<Arena>> make_window_arena(const FetchServerConfig& config) {
  const std::uint32_t window_bytes = config.windows.window_bytes;
  if (window_bytes == 0) return std::nullopt;
  if (window_bytes > kMaxWindowBytes) {
    return absl::InvalidArgumentError(
        str_cat("a window has at most ", kMaxWindowBytes, " bytes, not ", window_bytes));
  }
  return make_arena(config, ArenaKind::kWindow, config.windows.pool_bytes, window_bytes);
}

class GrpcFetchServer final : public FetchServer {
 public:
  absl::Status open(const FetchServerConfig& config, std::unique_ptr<BlockIo> io,
                    Registry& registry, const Logger& log);

  ~GrpcFetchServer() override {
    window_service_.reset();
    // Before the streams, so that their ends take nothing back: what was ready can be copied still.
    loop_.reset();
    if (grpc_server_ != nullptr) {
      service_->shut_down();
      grpc_server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
      grpc_server_->Wait();
    }
    grpc_server_.reset();
  }

  std::string window_address() const override { return window_address_; }
  void begin_drain() override { queue_.push(BeginDrain{}); }

  bool wait_drained(std::chrono::milliseconds timeout) override {
    const auto deadline = Clock::now() + timeout;
    while (!loop_->is_idle()) {
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

 private:
  absl::Status serve_windows(const FetchServerConfig& config, const Arena& windows,
                             Registry& registry);
  absl::Status listen(const std::string& address);

  // In the order of their making; what comes later points to what comes earlier.
  std::unique_ptr<HostClaim> claim_;
  EventQueue queue_{EventQueueLimits{}};
  std::unique_ptr<FetchService> service_;
  std::unique_ptr<WindowService> window_service_;
  std::string window_address_;
  std::unique_ptr<FetchLoop> loop_;
  std::unique_ptr<grpc::Server> grpc_server_;
};

absl::Status GrpcFetchServer::open(const FetchServerConfig& config, std::unique_ptr<BlockIo> io,
                                   Registry& registry, const Logger& log) {
  ASSIGN_OR_RETURN(HostClaim claim, HostClaim::take(config.host_id));
  claim_ = std::make_unique<HostClaim>(std::move(claim));
  ASSIGN_OR_RETURN(Arena read, make_arena(config, ArenaKind::kRead, config.read_arena_bytes,
                                          config.block_bytes));
  ASSIGN_OR_RETURN(Arena write, make_arena(config, ArenaKind::kWrite, config.write_arena_bytes,
                                           config.block_bytes));
  ASSIGN_OR_RETURN(std::optional<Arena> window, make_window_arena(config));
  Welcome welcome{.read_arena = read.ticket(),
                  .write_arena = write.ticket(),
                  .block_bytes = config.block_bytes,
                  .window_arena = {},
                  .window_bytes = config.windows.window_bytes};
  if (window) {
    welcome.window_arena = window->ticket();
    RETURN_IF_ERROR(serve_windows(config, *window, registry));
  }
  service_ = std::make_unique<FetchService>(std::move(welcome), queue_, log);
  FetchLoopConfig loop{.limits = config.limits,
                       .block_bytes = config.block_bytes,
                       .windows = {.pool = config.windows.limits,
                                   .window_bytes = config.windows.window_bytes,
                                   .max_peer_reads = config.windows.max_peer_reads},
                       .owner = {.host_id = config.host_id,
                                 .address = window_address_,
                                 .incarnation = config.incarnation}};
  loop.windows.pool.slot_count = window ? window->slot_count() : 0;
  loop_ = std::make_unique<FetchLoop>(
      loop, FetchArenas{std::move(read), std::move(write), std::move(window)}, std::move(io),
      make_grpc_window_peers(), queue_, *service_, registry);
  return listen(config.listen_address);
}

absl::Status GrpcFetchServer::serve_windows(const FetchServerConfig& config, const Arena& windows,
                                            Registry& registry) {
  if (config.windows.listen_address.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(ArenaReader reader, ArenaReader::open(windows.ticket(), ArenaKind::kWindow));
  ASSIGN_OR_RETURN(window_service_,
                   WindowService::start({.listen_address = config.windows.listen_address,
                                         .incarnation = config.incarnation,
                                         .window_bytes = config.windows.window_bytes},
                                        std::move(reader), registry));
  window_address_ = config.windows.advertise_address.empty() ? window_service_->address()
                                                             : config.windows.advertise_address;
  return absl::OkStatus();
}

absl::Status GrpcFetchServer::listen(const std::string& address) {
  ASSIGN_OR_RETURN(const std::string path, socket_path(address));
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service_.get());
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  grpc::ResourceQuota quota("kvfetch");
  quota.SetMaxThreads(16);
  builder.SetResourceQuota(quota);
  grpc_server_ = builder.BuildAndStart();
  if (grpc_server_ == nullptr || port == 0) {
    return absl::UnavailableError(str_cat("cannot listen at ", address));
  }
  // Who may connect may read every block that is fetched here: this user alone.
  if (::chmod(path.c_str(), 0600) != 0) return absl::ErrnoToStatus(errno, path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<FetchServer>> FetchServer::start(const FetchServerConfig& config,
                                                                std::unique_ptr<BlockIo> io,
                                                                Registry& registry,
                                                                const Logger& log) {
  auto server = std::make_unique<GrpcFetchServer>();
  RETURN_IF_ERROR(server->open(config, std::move(io), registry, log));
  return std::unique_ptr<FetchServer>(std::move(server));
}

}  // namespace millrace::storage::fetch
