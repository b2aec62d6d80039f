#include "storage/fetch/fetch_client.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "api/proto/kvfetch.grpc.pb.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/types.h"
#include "storage/ec/crc32c.h"
#include "storage/fetch/fetch_wire.h"

namespace millrace::storage::fetch {
namespace {

using Clock = std::chrono::steady_clock;

/// Commands that wait while a message is being sent go out together, about so much at a time.
constexpr std::size_t kBatchBytes = std::size_t{1} << 20;

absl::Status from_grpc(const grpc::Status& status) {
  if (status.ok()) return absl::UnavailableError("the fetcher has closed the connection");
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

/// The stream. Lives until gRPC is done with it. gRPC calls the On... functions from its own
/// threads; one mutex guards everything, and no gRPC call that could block happens under it.
class Connection final
    : public grpc::ClientBidiReactor<proto::v1::KvFetchCommands, proto::v1::KvFetchEvents> {
 public:
  explicit Connection(const FetchClientOptions& options)
      : max_waiting_(options.max_waiting),
        max_waiting_window_bytes_(options.max_waiting_window_bytes) {
    grpc::ChannelArguments arguments;
    // A connection for each engine of a process, so that none waits behind another's.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = proto::v1::KvFetch::NewStub(
        grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments));
    stub_->async()->Connect(&context_, this);
    proto::v1::KvFetchCommands hello;
    hello.mutable_hello()->set_protocol_version(kProtocolVersion);
    hello.mutable_hello()->set_arena_version(kArenaVersion);
    hello.mutable_hello()->set_client_id(options.client_id);
    writing_ = std::move(hello);
    is_writing_ = true;
    StartWrite(&writing_);
    StartRead(&incoming_);
    StartCall();
  }

  ~Connection() override {
    context_.TryCancel();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_done_; });
  }

  absl::StatusOr<proto::v1::KvFetchWelcome> wait_welcome(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return welcome_ || is_done_; });
    if (welcome_) return *welcome_;
    if (is_done_) return end_;
    return absl::DeadlineExceededError("the fetcher has not answered");
  }

  absl::Status send(proto::v1::KvFetchCommand command) {
    std::lock_guard lock(mutex_);
    if (!end_.ok()) return end_;
    const std::size_t window_bytes = command.put_window().window().size();
    if (waiting_window_bytes_ + window_bytes > max_waiting_window_bytes_) {
      return absl::ResourceExhaustedError(str_cat(waiting_window_bytes_,
                                                  " bytes of windows wait for the fetcher, and ",
                                                  max_waiting_window_bytes_, " may"));
    }
    if (outbox_.size() >= max_waiting_) {
      return break_off(absl::ResourceExhaustedError("too many commands wait for the fetcher"));
    }
    waiting_window_bytes_ += window_bytes;
    outbox_.push_back(std::move(command));
    send_next();
    return absl::OkStatus();
  }

  std::vector<SessionEvent> poll(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return !events_.empty() || is_done_; });
    return std::exchange(events_, {});
  }

  absl::Status health() const {
    std::lock_guard lock(mutex_);
    return end_;
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone says why
    std::lock_guard lock(mutex_);
    if (incoming_.has_welcome()) welcome_ = incoming_.welcome();
    for (const auto& wire : incoming_.events()) {
      absl::StatusOr<SessionEvent> event = from_wire(wire);
      if (!event.ok()) {
        break_off(event.status()).IgnoreError();
        return;
      }
      if (events_.size() >= max_waiting_) {
        break_off(absl::ResourceExhaustedError("too many events wait to be polled")).IgnoreError();
        return;
      }
      events_.push_back(*std::move(event));
    }
    changed_.notify_all();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    is_writing_ = false;
    if (ok) send_next();
  }

  void OnDone(const grpc::Status& status) override {
    std::lock_guard lock(mutex_);
    if (end_.ok()) end_ = from_grpc(status);
    is_done_ = true;
    changed_.notify_all();
  }

  /// Call with the mutex held.
  void send_next() {
    if (is_writing_ || outbox_.empty() || !end_.ok()) return;
    writing_.Clear();
    for (std::size_t bytes = 0; !outbox_.empty() && bytes < kBatchBytes; outbox_.pop_front()) {
      bytes += outbox_.front().ByteSizeLong();
      waiting_window_bytes_ -= outbox_.front().put_window().window().size();
      *writing_.add_commands() = std::move(outbox_.front());
    }
    is_writing_ = true;
    StartWrite(&writing_);
  }

  /// Call with the mutex held. Returns the reason.
  absl::Status break_off(const absl::Status& reason) {
    end_ = reason;
    outbox_.clear();
    waiting_window_bytes_ = 0;
    context_.TryCancel();
    return reason;
  }

  const std::size_t max_waiting_;
  const std::size_t max_waiting_window_bytes_;
  std::unique_ptr<proto::v1::KvFetch::Stub> stub_;
  grpc::ClientContext context_;
  proto::v1::KvFetchEvents incoming_;   // the read under way owns it
  proto::v1::KvFetchCommands writing_;  // the write under way owns it

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<proto::v1::KvFetchCommand> outbox_;
  std::size_t waiting_window_bytes_ = 0;  ///< in outbox_
  std::vector<SessionEvent> events_;
  std::optional<proto::v1::KvFetchWelcome> welcome_;
  bool is_writing_ = false;
  bool is_done_ = false;
  absl::Status end_;  ///< OK while connected
};

/// What an engine has mapped, and how large what lies there can be.
struct Arenas {
  ArenaReader reader;
  ArenaWriter writer;
  std::optional<ArenaReader> windows;
  std::uint32_t block_bytes = 0;
  std::uint32_t window_bytes = 0;
};

class GrpcFetchClient final : public FetchClient {
 public:
  GrpcFetchClient(std::unique_ptr<Connection> connection, Arenas arenas)
      : connection_(std::move(connection)), arenas_(std::move(arenas)) {}

  std::uint32_t block_bytes() const override { return arenas_.block_bytes; }
  std::uint32_t window_bytes() const override { return arenas_.window_bytes; }

  absl::Status fetch(RequestId request_id, std::span<const BlockKey> keys,
                     std::uint32_t block_bytes, std::int64_t priority,
                     std::chrono::milliseconds timeout) override {
    const TimePoint now = Clock::now();
    return send(FetchBlocks{.session = 0,
                            .request_id = request_id,
                            .keys = {keys.begin(), keys.end()},
                            .block_bytes = block_bytes,
                            .priority = priority,
                            .deadline = now + timeout},
                now);
  }
  absl::Status reprioritise(RequestId request_id, std::int64_t priority) override {
    return send(Reprioritise{0, request_id, priority});
  }
  absl::Status cancel(RequestId request_id) override { return send(CancelFetch{0, request_id}); }
  absl::Status release(RequestId request_id, std::span<const std::uint32_t> indices) override {
    return send(ReleaseBlocks{0, request_id, {indices.begin(), indices.end()}});
  }
  absl::Status copy_out(const SlotRef& ref, const BlockKey& key,
                        std::span<std::byte> out) const override {
    return arenas_.reader.copy_out(ref, key, out);
  }
  absl::Status copy_part(const SlotRef& ref, const BlockKey& key, std::uint32_t block_bytes,
                         std::size_t offset, std::span<std::byte> out,
                         std::uint32_t& crc) const override {
    return arenas_.reader.copy_part(ref, key, block_bytes, offset, out, crc);
  }

  absl::Status reserve(RequestId request_id, std::uint32_t count) override {
    return send(ReserveSlots{0, request_id, count});
  }
  absl::Status return_slot(const SlotRef& ref) override { return send(ReturnSlot{0, ref}); }
  absl::Status store(const SlotRef& ref, const BlockKey& key, std::span<const std::byte> block,
                     std::uint32_t depth, TtlClass ttl) override {
    ASSIGN_OR_RETURN(const std::uint32_t crc, arenas_.writer.fill(ref, block));
    return send(SealSlot{.session = 0,
                         .ref = ref,
                         .key = key,
                         .depth = depth,
                         .ttl = ttl,
                         .block_bytes = static_cast<std::uint32_t>(block.size()),
                         .crc = crc});
  }

  absl::Status put_window(RequestId request_id, const BlockKey& key,
                          std::span<const std::byte> window) override {
    if (!arenas_.windows) return no_windows();
    if (window.empty() || window.size() > arenas_.window_bytes) {
      return absl::InvalidArgumentError(
          str_cat("a window has 1 to ", arenas_.window_bytes, " bytes, not ", window.size()));
    }
    return send(WindowEvent(PutWindow{.session = 0,
                                      .request_id = request_id,
                                      .key = key,
                                      .window = {window.begin(), window.end()},
                                      .crc = ec::crc32c(window)}));
  }
  absl::Status get_window(RequestId request_id, const swa::WindowLocation& from,
                          const BlockKey& key, std::chrono::milliseconds timeout) override {
    const TimePoint now = Clock::now();
    return send(WindowEvent(GetWindow{.session = 0,
                                      .request_id = request_id,
                                      .from = from,
                                      .key = key,
                                      .deadline = now + timeout}),
                now);
  }
  absl::Status copy_window_out(const SlotRef& ref, const BlockKey& key,
                               std::span<std::byte> out) const override {
    return arenas_.windows ? arenas_.windows->copy_out(ref, key, out) : no_windows();
  }
  absl::Status release_window(RequestId request_id) override {
    return send(WindowEvent(ReleaseWindow{0, request_id}));
  }

  std::vector<SessionEvent> poll(std::chrono::milliseconds timeout) override {
    return connection_->poll(timeout);
  }
  absl::Status health() const override { return connection_->health(); }

 private:
  static absl::Status no_windows() {
    return absl::FailedPreconditionError("this machine's fetcher keeps no windows");
  }
  absl::Status send(const LoopEvent& command, TimePoint now = {}) {
    proto::v1::KvFetchCommand wire;
    to_wire(command, now, wire);
    return connection_->send(std::move(wire));
  }

  const std::unique_ptr<Connection> connection_;
  Arenas arenas_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FetchClient>> FetchClient::connect(
    const FetchClientOptions& options) {
  auto connection = std::make_unique<Connection>(options);
  ASSIGN_OR_RETURN(const proto::v1::KvFetchWelcome welcome,
                   connection->wait_welcome(options.connect_timeout));
  ASSIGN_OR_RETURN(ArenaReader reader, ArenaReader::open(from_wire(welcome.read_arena())));
  ASSIGN_OR_RETURN(ArenaWriter writer, ArenaWriter::open(from_wire(welcome.write_arena())));
  Arenas arenas{.reader = std::move(reader),
                .writer = std::move(writer),
                .windows = {},
                .block_bytes = welcome.block_bytes(),
                .window_bytes = 0};
  if (welcome.has_window_arena()) {
    ASSIGN_OR_RETURN(arenas.windows,
                     ArenaReader::open(from_wire(welcome.window_arena()), ArenaKind::kWindow));
    arenas.window_bytes = welcome.window_bytes();
  }
  return std::unique_ptr<FetchClient>(
      std::make_unique<GrpcFetchClient>(std::move(connection), std::move(arenas)));
}

}  // namespace millrace::storage::fetch
