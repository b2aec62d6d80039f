#include "api/entrypoint/response_job.h"

#include <algorithm>
#include <utility>

#include "api/recipe/request_error.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {

using common::http::ResponseWriter;
using common::http::ServerReply;

namespace {

// A stream that is longer cannot be taken up again.
constexpr std::size_t kMaxLogBytes = 16u << 20;
constexpr std::size_t kMaxStreams = 16;
constexpr std::string_view kEventEnd = "\n\n";

/// The message in an error body of ours.
std::string message_in(const std::string& body) {
  const auto json = parse_json(body);
  if (!json.ok() || !json->is_object() || !json->contains("error")) return body;
  return json_string((*json)["error"], "message").value_or(body);
}

}  // namespace

/// What the session writes with: keeps back what ends the answer, and in the background what nobody
/// reads.
class ResponseJob::Encoder final : public recipe::ResponseEncoder {
 public:
  explicit Encoder(ResponseJob& job) : job_(job) {}

  std::string begin() override { return read(job_.encoder_->begin()); }
  std::string delta(const recipe::OutputDelta& delta) override {
    return read(job_.encoder_->delta(delta));
  }
  std::string finish(const recipe::Ending& ending, const recipe::Usage& usage) override {
    job_.last_events_ = job_.encoder_->finish(ending, usage);
    return {};
  }
  std::string fail(const recipe::ErrorDetails& error) override {
    job_.last_events_ = job_.encoder_->fail(error);
    return {};
  }
  std::string complete(const std::vector<recipe::Choice>& choices,
                       const recipe::Usage& usage) override {
    return job_.encoder_->complete(choices, usage);
  }

 private:
  std::string read(std::string events) const {
    return job_.is_streamed_ ? std::move(events) : std::string();
  }

  ResponseJob& job_;
};

/// What the session writes to.
class ResponseJob::Writer final : public ResponseWriter {
 public:
  explicit Writer(ResponseJob& job) : job_(job) {}
  ~Writer() override { job_.on_session_gone(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void respond(ServerReply reply) override { job_.on_reply(std::move(reply)); }
  void begin_stream(ServerReply head) override {
    if (!job_.is_background_) job_.begin_stream(std::move(job_.client_.writer), std::move(head));
  }
  void write(std::string_view bytes) override { job_.on_events(bytes); }
  void finish_stream() override { job_.on_generated(); }
  void on_close(std::function<void()> callback) override { job_.cancel_ = std::move(callback); }

 private:
  ResponseJob& job_;
};

ResponseJob::ResponseJob(recipe::PreparedResponse prepared, std::string account, Client client,
                         Hooks hooks)
    : is_background_(prepared.is_background),
      is_stored_(prepared.is_stored),
      is_streamed_(prepared.is_streamed),
      account_(std::move(account)),
      input_items_(std::move(prepared.input_items)),
      encoder_(std::move(prepared.encoder)),
      hooks_(std::move(hooks)),
      client_(std::move(client)) {
  client_.writer->on_close([this] {
    client_.writer = nullptr;
    if (!is_background_) stop_generation();
  });
}

ResponseJob::~ResponseJob() = default;

std::unique_ptr<recipe::ResponseEncoder> ResponseJob::make_encoder() {
  return std::make_unique<Encoder>(*this);
}

std::unique_ptr<ResponseWriter> ResponseJob::make_writer() {
  return std::make_unique<Writer>(*this);
}

void ResponseJob::admitted() {
  if (!is_background_ || client_.writer == nullptr) return;
  if (is_streamed_) {
    begin_stream(std::move(client_.writer), event_stream_head(client_.request_id));
    return;
  }
  ServerReply reply;
  reply.body = encoder_->response();
  client_.respond(std::move(reply));
  client_.writer = nullptr;
}

/// The session answers at once: with the response, or with a failure before the first token.
void ResponseJob::on_reply(ServerReply reply) {
  if (reply.status == 200) {
    reply_ = std::move(reply);
    on_generated();
    return;
  }
  // A client that still waits for its answer gets the refusal as such.
  if (client_.writer != nullptr) {
    is_generated_ = true;
    is_over_ = true;
    std::exchange(client_.writer, nullptr)->respond(std::move(reply));
    hooks_.over();
    return;
  }
  recipe::ErrorDetails error;
  error.message = message_in(reply.body);
  last_events_ = encoder_->fail(error);
  on_generated();
}

void ResponseJob::on_events(std::string_view bytes) {
  write(bytes);
  // Comments keep connections open; they are no events.
  if (!bytes.empty() && bytes.front() != ':') log(bytes);
}

/// The answer is whole, but for what ends it.
void ResponseJob::on_generated() {
  if (std::exchange(is_generated_, true)) return;
  const std::string_view status = encoder_->status();
  if (!is_stored_ || (!is_background_ && status == "failed")) {
    stored(absl::OkStatus());
    return;
  }
  log(last_events_);
  hooks_.store({response_id(), encoder_->response(), input_items_, encoder_->output_items(),
                std::exchange(log_, {}), account_});
}

void ResponseJob::stored(const absl::Status& status) {
  if (std::exchange(is_over_, true)) return;
  if (!status.ok() && !last_events_.empty()) {
    last_events_ = encoder_->fail_instead(last_events_, recipe::error_details(status));
  }
  if (client_.writer != nullptr) {
    if (status.ok()) {
      client_.writer->respond(std::move(reply_));
    } else {
      client_.refuse(status);
    }
  }
  write(last_events_);
  for (const Stream& stream : streams_) stream.writer->finish_stream();
  streams_.clear();
  hooks_.over();
}

/// Without an end: the client has gone, or somebody cancelled.
void ResponseJob::on_session_gone() {
  cancel_ = nullptr;
  if (is_generated_) return;
  is_generated_ = true;
  is_over_ = true;
  hooks_.over();
}

void ResponseJob::begin_stream(std::unique_ptr<ResponseWriter> writer, ServerReply head) {
  if (writer == nullptr) return;
  const StreamId id = ++last_stream_;
  writer->on_close([this, id] {
    std::erase_if(streams_, [&](const Stream& stream) { return stream.id == id; });
    if (!is_background_) stop_generation();
  });
  writer->begin_stream(std::move(head));
  streams_.push_back({id, std::move(writer)});
}

void ResponseJob::write(std::string_view bytes) {
  if (bytes.empty()) return;
  // By index: a client that is too slow is closed, and its stream leaves the list.
  for (std::size_t i = streams_.size(); i-- > 0;) {
    if (i < streams_.size()) streams_[i].writer->write(bytes);
  }
}

void ResponseJob::log(std::string_view events) {
  if (!is_background_ || !is_streamed_ || is_log_full_) return;
  is_log_full_ = log_.size() + events.size() > kMaxLogBytes;
  if (is_log_full_) {
    log_ = {};
  } else {
    log_ += events;
  }
}

absl::Status ResponseJob::subscribe(Client& client, std::int64_t starting_after) {
  if (!is_background_ || !is_streamed_ || is_log_full_ || is_generated_) {
    return recipe::field_error("stream",
                               "only a response that was created with `background` and `stream` "
                               "can be streamed again, as long as its events are kept");
  }
  if (streams_.size() >= kMaxStreams) {
    return absl::ResourceExhaustedError(
        str_cat("the response has ", kMaxStreams, " readers already"));
  }
  begin_stream(std::move(client.writer), event_stream_head(client.request_id));
  const std::string_view events = events_behind(log_, starting_after);
  if (!events.empty()) streams_.back().writer->write(events);
  return absl::OkStatus();
}

absl::Status ResponseJob::cancel() {
  if (!is_background_) {
    return recipe::field_error("response_id", "Cannot cancel a synchronous response.");
  }
  if (std::exchange(is_generated_, true)) return absl::OkStatus();
  encoder_->cancel();
  stop_generation();
  hooks_.store({response_id(), encoder_->response(), input_items_, encoder_->output_items(),
                std::exchange(log_, {}), account_});
  return absl::OkStatus();
}

void ResponseJob::forget() {
  is_stored_ = false;
  if (is_background_) stop_generation();
}

void ResponseJob::stop_generation() {
  if (const auto cancel = std::exchange(cancel_, nullptr)) cancel();
}

std::string_view events_behind(std::string_view events, std::int64_t number) {
  for (std::int64_t at = 0; at <= number; ++at) {
    const std::size_t end = events.find(kEventEnd);
    if (end == std::string_view::npos) return {};
    events.remove_prefix(end + kEventEnd.size());
  }
  return events;
}

ServerReply event_stream_head(const std::string& request_id) {
  ServerReply head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers.emplace_back("Cache-Control", "no-cache");
  name_request(request_id, head);
  return head;
}

}  // namespace millrace::api::entrypoint
