#include "dataplane/worker/session.h"

#include <algorithm>
#include <utility>

#include "common/annotate.h"
#include "common/str_cat.h"
#include "dataplane/cost/cost_wire.h"
#include "dataplane/worker/worker_server.h"

namespace millrace::dataplane::worker {
namespace {

using Clock = std::chrono::steady_clock;

grpc::Status to_grpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

/// What a prefill will probably have to run.
cost::Chunk work_of(const RequestSpec& spec) {
  const std::int64_t tokens = std::ssize(spec.tokens);
  const std::int64_t hit = spec.kv ? spec.kv->hit_tokens : 0;
  const std::int64_t cached = std::min(hit, std::max<std::int64_t>(tokens - 1, 0));
  return cost::chunk_at(tokens - cached, cached, spec.prompt_tokens);
}

}  // namespace

Session::Session(StreamId stream, const transfer::PeerIdentity& identity,
                 const std::optional<KvNaming>& naming, CommandQueue& commands, Owner& owner,
                 const Logger& log)
    : stream_(stream),
      identity_(identity),
      naming_(naming),
      commands_(commands),
      owner_(owner),
      log_(log) {}

void Session::begin() { StartRead(&incoming_); }

// ---- reading ------------------------------------------------------------------------------------

void Session::OnReadDone(bool ok) {
  if (!ok) {  // the peer has closed its side, or is gone
    finish(grpc::Status::OK, Outbox::kDrop);
    return;
  }
  is_opened_ ? on_command() : on_hello();
  if (!is_ended()) StartRead(&incoming_);
}

void Session::on_hello() {
  if (!incoming_.has_hello()) {
    finish({grpc::StatusCode::INVALID_ARGUMENT, "the first message of a stream must be hello"},
           Outbox::kDrop);
    return;
  }
  const absl::Status status = check_identity(identity_, from_wire(incoming_.hello().identity()));
  if (!status.ok()) {
    log_.warn("stream_refused", {{"reason", std::string(status.message())}});
    finish(to_grpc(status), Outbox::kDrop);
    return;
  }
  if (incoming_.hello().has_prefill_cost()) {
    const absl::StatusOr<cost::CostModel> cost = cost::from_wire(incoming_.hello().prefill_cost());
    if (!cost.ok()) {
      finish(to_grpc(annotate(cost.status(), "hello.prefill_cost")), Outbox::kDrop);
      return;
    }
    owner_.on_cost(*cost);
  }
  entrypoint_id_ = incoming_.hello().entrypoint_id().substr(0, kMaxRequestIdBytes);
  is_opened_ = true;
  commands_.push_control(OpenStream{stream_});
  log_.info("stream_opened", {{"stream", stream_}, {"entrypoint_id", entrypoint_id_}});
  const Load load = owner_.current_load();
  std::lock_guard lock(mutex_);
  is_greeted_ = true;
  load_ = load;
  proto::v1::EngineEvents greeting;
  add_load(greeting);
  if (naming_) greeting.set_kv_layout_id(naming_->layout_id);
  enqueue(std::move(greeting));
}

void Session::on_offers() {
  const absl::StatusOr<StreamOffers> offers = from_wire(incoming_.offers(), Clock::now());
  if (offers.ok()) {
    owner_.on_offers(stream_, *offers);
  } else {
    finish(to_grpc(offers.status()), Outbox::kDrop);
  }
}

void Session::on_command() {
  if (incoming_.has_offers()) {
    on_offers();
    return;
  }
  // Before anything can be wrong with it: whatever comes of the request, the claim is answered.
  if (incoming_.has_start_prefill() && incoming_.start_prefill().answered_claim() != 0) {
    owner_.on_granted(stream_, incoming_.start_prefill().answered_claim());
  }
  const std::optional<RequestKey> key = start_key(incoming_);
  absl::StatusOr<Command> command = from_wire(stream_, incoming_, Clock::now(), naming_);
  if (!command.ok()) {
    // A malformed request fails alone; anything else malformed is a peer that speaks another
    // language.
    key ? answer_failed(*key, command.status()) : finish(to_grpc(command.status()), Outbox::kDrop);
    return;
  }
  if (queue(*std::move(command))) return;
  const absl::Status full = absl::ResourceExhaustedError("the worker's command queue is full");
  // A lost Cancel would leave a request running that nobody wants: the stream ends instead, and all
  // its requests with it.
  key ? answer_failed(*key, full) : finish(to_grpc(full), Outbox::kDrop);
}

/// Puts a command into the engine's queue; false when that is full.
bool Session::queue(Command command) {
  const auto* prefill = std::get_if<StartPrefill>(&command);
  const bool is_start = prefill != nullptr || std::holds_alternative<StartDecode>(command);
  if (!is_start) return commands_.try_push(std::move(command));
  owner_.on_coming(stream_, prefill == nullptr ? cost::Chunk{} : work_of(prefill->spec));
  if (commands_.try_push(std::move(command))) return true;
  owner_.on_not_coming(stream_);
  return false;
}

void Session::answer_failed(const RequestKey& key, const absl::Status& status) {
  proto::v1::EngineEvents message;
  to_wire(Event{.key = key, .what = Failed{status}}, message);
  std::lock_guard lock(mutex_);
  // Not taken up by the engine: counted here, so that the sender's charge is still settled.
  ++refused_requests_;
  add_load(message);
  enqueue(std::move(message));
}

// ---- writing ------------------------------------------------------------------------------------

void Session::push(const StreamBatch& batch, const Load& load) {
  std::lock_guard lock(mutex_);
  load_ = load;
  started_requests_ = batch.started_requests;
  const bool is_wish_news = load.wants_more && !has_told_wish_;
  if (batch.events.empty() && batch.windows.empty() && !is_wish_news) return;
  proto::v1::EngineEvents message;
  for (const Event& event : batch.events) to_wire(event, message);
  for (const WindowStored& window : batch.windows) to_wire(window, message);
  add_load(message);
  enqueue(std::move(message));
}

void Session::claim(const routing::ClaimDesk::Claim& claim) {
  proto::v1::EngineEvents message;
  to_wire(claim, message);
  std::lock_guard lock(mutex_);
  add_load(message);
  enqueue(std::move(message));
}

void Session::heartbeat(Clock::time_point now) {
  std::lock_guard lock(mutex_);
  // With a write under way the peer is slow, and gets its news when it reads.
  if (!is_greeted_ || is_writing_ || now - last_sent_ < kHeartbeatInterval) return;
  proto::v1::EngineEvents message;
  add_load(message);
  enqueue(std::move(message));
}

void Session::end(const grpc::Status& status) { finish(status, Outbox::kSend); }

bool Session::is_ended() const {
  std::lock_guard lock(mutex_);
  return end_status_.has_value();
}

/// Call with the mutex held.
void Session::add_load(proto::v1::EngineEvents& message) {
  // The load is of the last turn; a step may be long, and starts come meanwhile.
  has_told_wish_ = owner_.wants_more();
  to_wire(load_, started_requests_ + refused_requests_, message);
  message.mutable_load()->set_wants_more(has_told_wish_);
  message.mutable_load()->set_sequence(++loads_sent_);
  if (load_.prefill_cost && load_.prefill_cost != sent_cost_) {
    sent_cost_ = load_.prefill_cost;
    *message.mutable_prefill_cost() = cost::to_wire(*sent_cost_);
  }
}

/// Call with the mutex held.
void Session::enqueue(proto::v1::EngineEvents message) {
  if (end_status_) return;
  if (outbox_.size() >= kMaxOutboxMessages) {
    end_status_ = {grpc::StatusCode::RESOURCE_EXHAUSTED, "the stream's reader is too slow"};
    outbox_.resize(is_writing_ ? 1 : 0);
    maybe_finish();
    return;
  }
  outbox_.push_back(std::move(message));
  send_next();
}

/// Call with the mutex held. gRPC runs the completion of a write on another stack, never inside
/// StartWrite, so holding the mutex here is safe.
void Session::send_next() {
  if (is_writing_ || outbox_.empty() || is_finished_) return;
  is_writing_ = true;
  last_sent_ = Clock::now();
  StartWrite(&outbox_.front());
}

void Session::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  is_writing_ = false;
  outbox_.pop_front();
  if (!ok) {  // the peer is gone
    outbox_.clear();
    if (!end_status_) end_status_ = grpc::Status::CANCELLED;
  }
  send_next();
  maybe_finish();
}

// ---- ending -------------------------------------------------------------------------------------

void Session::OnCancel() { finish(grpc::Status::CANCELLED, Outbox::kDrop); }

void Session::finish(const grpc::Status& status, Outbox outbox) {
  std::lock_guard lock(mutex_);
  if (outbox == Outbox::kDrop) outbox_.resize(is_writing_ ? 1 : 0);
  if (!end_status_) end_status_ = status;
  maybe_finish();
}

/// Call with the mutex held. The status goes out when no write is left.
void Session::maybe_finish() {
  if (!end_status_ || is_finished_ || is_writing_ || !outbox_.empty()) return;
  is_finished_ = true;
  Finish(*end_status_);
}

void Session::OnDone() {
  if (is_opened_)
    log_.info("stream_closed", {{"stream", stream_}, {"entrypoint_id", entrypoint_id_}});
  const std::shared_ptr<Session> keep = shared_from_this();  // the owner drops its reference
  owner_.on_done(stream_, is_opened_);
}

}  // namespace millrace::dataplane::worker
