#include "storage/fetch/fetch_stream.h"

#include <chrono>
#include <utility>

#include "common/str_cat.h"
#include "common/types.h"
#include "storage/fetch/fetch_wire.h"

namespace millrace::storage::fetch {
namespace {

/// Messages that may wait for an engine that does not read; one more breaks the stream, and all
/// that it holds is given back.
constexpr std::size_t kMaxOutboxMessages = 4096;
constexpr std::size_t kMaxClientIdBytes = 128;

grpc::Status to_grpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

grpc::Status check_versions(const proto::v1::KvFetchHello& hello) {
  if (hello.protocol_version() == kProtocolVersion && hello.arena_version() == kArenaVersion) {
    return grpc::Status::OK;
  }
  return {grpc::StatusCode::FAILED_PRECONDITION,
          str_cat("the engine speaks protocol ", hello.protocol_version(),
                  " with arenas of version ", hello.arena_version(), ", this fetcher protocol ",
                  kProtocolVersion, " with arenas of version ", kArenaVersion)};
}

/// What a command is answered that the queue has no room for. nullopt: one that must not be lost.
std::optional<SessionEvent> busy_answer(const FetchEvent& command) {
  if (const auto* fetch = std::get_if<FetchBlocks>(&command)) {
    return FetchDone{fetch->request_id, 0, FetchEnd::kBusy};
  }
  if (const auto* reserve = std::get_if<ReserveSlots>(&command)) {
    return WriteSlots{reserve->request_id, {}};
  }
  return std::nullopt;
}

std::optional<SessionEvent> busy_answer(const WindowEvent& command) {
  if (const auto* put = std::get_if<PutWindow>(&command)) {
    return WindowStored{put->request_id, std::nullopt};
  }
  if (const auto* get = std::get_if<GetWindow>(&command)) {
    return WindowMissed{get->request_id, swa::WindowMiss::kBusy};
  }
  return std::nullopt;
}

}  // namespace

FetchStream::FetchStream(SessionId session, const Welcome& welcome, EventQueue& queue, Owner& owner,
                         const Logger& log)
    : session_(session), welcome_(welcome), queue_(queue), owner_(owner), log_(log) {}

void FetchStream::begin() { StartRead(&incoming_); }

// ---- reading ------------------------------------------------------------------------------------

void FetchStream::OnReadDone(bool ok) {
  if (!ok) {  // the engine has closed its side, or is gone
    finish(grpc::Status::OK, Outbox::kDrop);
    return;
  }
  is_opened_ ? on_commands() : on_hello();
  if (!is_ended()) StartRead(&incoming_);
}

void FetchStream::on_hello() {
  if (!incoming_.has_hello()) {
    finish({grpc::StatusCode::INVALID_ARGUMENT, "the first message of a stream must be hello"},
           Outbox::kDrop);
    return;
  }
  if (const grpc::Status status = check_versions(incoming_.hello()); !status.ok()) {
    log_.warn("session_refused", {{"reason", status.error_message()}});
    finish(status, Outbox::kDrop);
    return;
  }
  client_id_ = incoming_.hello().client_id().substr(0, kMaxClientIdBytes);
  is_opened_ = true;
  queue_.push(SessionOpened{session_});
  log_.info("session_opened", {{"session", session_}, {"client_id", client_id_}});
  proto::v1::KvFetchEvents message;
  to_wire(welcome_.read_arena, *message.mutable_welcome()->mutable_read_arena());
  to_wire(welcome_.write_arena, *message.mutable_welcome()->mutable_write_arena());
  message.mutable_welcome()->set_block_bytes(welcome_.block_bytes);
  if (welcome_.window_arena) {
    to_wire(*welcome_.window_arena, *message.mutable_welcome()->mutable_window_arena());
    message.mutable_welcome()->set_window_bytes(welcome_.window_bytes);
  }
  std::lock_guard lock(mutex_);
  enqueue(std::move(message));
}

void FetchStream::on_commands() {
  for (const auto& wire : incoming_.commands()) {
    if (!take(wire)) return;
  }
}

bool FetchStream::take(const proto::v1::KvFetchCommand& wire) {
  absl::StatusOr<LoopEvent> command = from_wire(session_, wire, std::chrono::steady_clock::now());
  if (!command.ok()) {
    finish(to_grpc(command.status()), Outbox::kDrop);
    return false;
  }
  if (queue_.try_push_command(*std::move(command))) return true;
  // Untouched when it was not taken.
  const std::optional<SessionEvent> answer =
      std::visit([](const auto& event) { return busy_answer(event); },
                 *command);  // NOLINT(bugprone-use-after-move)
  if (!answer) {
    // A lost Release would hold slots for long: the stream ends instead, and all it holds with it.
    finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "the fetcher's queue is full"}, Outbox::kDrop);
    return false;
  }
  push({*answer});
  return true;
}

// ---- writing ------------------------------------------------------------------------------------

void FetchStream::push(const std::vector<SessionEvent>& events) {
  proto::v1::KvFetchEvents message;
  for (const SessionEvent& event : events) to_wire(event, *message.add_events());
  std::lock_guard lock(mutex_);
  enqueue(std::move(message));
}

void FetchStream::end(const grpc::Status& status) { finish(status, Outbox::kSend); }

bool FetchStream::is_ended() const {
  std::lock_guard lock(mutex_);
  return end_status_.has_value();
}

/// Call with the mutex held.
void FetchStream::enqueue(proto::v1::KvFetchEvents message) {
  if (end_status_) return;
  if (outbox_.size() >= kMaxOutboxMessages) {
    end_status_ = {grpc::StatusCode::RESOURCE_EXHAUSTED, "the engine reads too slowly"};
    outbox_.resize(is_writing_ ? 1 : 0);
    maybe_finish();
    return;
  }
  outbox_.push_back(std::move(message));
  send_next();
}

/// Call with the mutex held. gRPC runs the completion of a write on another stack, never inside
/// StartWrite, so holding the mutex here is safe.
void FetchStream::send_next() {
  if (is_writing_ || outbox_.empty() || is_finished_) return;
  is_writing_ = true;
  StartWrite(&outbox_.front());
}

void FetchStream::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  is_writing_ = false;
  outbox_.pop_front();
  if (!ok) {  // the engine is gone
    outbox_.clear();
    if (!end_status_) end_status_ = grpc::Status::CANCELLED;
  }
  send_next();
  maybe_finish();
}

// ---- ending -------------------------------------------------------------------------------------

void FetchStream::OnCancel() { finish(grpc::Status::CANCELLED, Outbox::kDrop); }

void FetchStream::finish(const grpc::Status& status, Outbox outbox) {
  std::lock_guard lock(mutex_);
  if (outbox == Outbox::kDrop) outbox_.resize(is_writing_ ? 1 : 0);
  if (!end_status_) end_status_ = status;
  maybe_finish();
}

/// Call with the mutex held. The status goes out when no write is left.
void FetchStream::maybe_finish() {
  if (!end_status_ || is_finished_ || is_writing_ || !outbox_.empty()) return;
  is_finished_ = true;
  Finish(*end_status_);
}

void FetchStream::OnDone() {
  if (is_opened_) {
    log_.info("session_closed", {{"session", session_}, {"client_id", client_id_}});
  }
  const std::shared_ptr<FetchStream> keep = shared_from_this();  // the owner drops its reference
  owner_.on_done(session_, is_opened_);
}

}  // namespace millrace::storage::fetch
