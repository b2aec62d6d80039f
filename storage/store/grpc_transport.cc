#include "storage/store/grpc_transport.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api/proto/storage.grpc.pb.h"
#include "common/str_cat.h"
#include "storage/store/grpc_service.h"
#include "storage/store/wire_codec.h"

namespace millrace::storage::store {
namespace {

using Clock = std::chrono::steady_clock;
using RequestBatch = proto::v1::ShardRequestBatch;
using ReplyBatch = proto::v1::ShardReplyBatch;

ShardReply reply_of(ShardResult result, std::string message) {
  ShardReply reply;
  reply.result = result;
  reply.message = std::move(message);
  return reply;
}

/// Calls back with answers that are made here, on a thread of its own: never from within send().
class Answerer {
 public:
  Answerer() : thread_([this] { run(); }) {}
  ~Answerer() {
    {
      std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void post(ShardReplyCallback done, ShardReply reply) {
    {
      std::lock_guard lock(mutex_);
      queue_.emplace_back(std::move(done), std::move(reply));
    }
    wake_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return is_stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      std::vector<std::pair<ShardReplyCallback, ShardReply>> batch;
      batch.swap(queue_);
      lock.unlock();
      for (auto& [done, reply] : batch) done(std::move(reply));
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::pair<ShardReplyCallback, ShardReply>> queue_;  // guarded by mutex_
  bool is_stopping_ = false;                                      // guarded by mutex_
  std::thread thread_;
};

class Peer;

/// One stream, from its start to OnDone. Owned by itself, as gRPC wants it.
class Stream final : public grpc::ClientBidiReactor<RequestBatch, ReplyBatch> {
 public:
  Stream(std::shared_ptr<Peer> peer, proto::v1::Storage::Stub& stub) : peer_(std::move(peer)) {
    stub.async()->Exchange(&context_, this);
  }

  void start() {
    // Writes start outside of this object's callbacks: the hold keeps OnDone away meanwhile.
    AddHold();
    StartRead(&replies_);
    StartCall();
  }
  void cancel() { context_.TryCancel(); }
  void release() { RemoveHold(); }

  /// Of the one write that may be under way.
  RequestBatch& requests() { return requests_; }
  void write() { StartWrite(&requests_); }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  const std::shared_ptr<Peer> peer_;
  grpc::ClientContext context_;
  RequestBatch requests_;
  ReplyBatch replies_;
};

/// One node: what waits for its stream, what waits for its answers.
class Peer : public std::enable_shared_from_this<Peer> {
 public:
  Peer(std::string address, const GrpcTransportOptions& options, Answerer& answerer)
      : address_(std::move(address)), options_(options), answerer_(answerer) {
    grpc::ChannelArguments arguments;
    const auto milliseconds = [](std::chrono::milliseconds value) {
      return static_cast<int>(value.count());
    };
    arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
    arguments.SetMaxSendMessageSize(kMaxMessageBytes);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, milliseconds(options.keepalive_interval));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, milliseconds(options.keepalive_timeout));
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, milliseconds(options.first_backoff));
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, milliseconds(options.first_backoff));
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, milliseconds(options.longest_backoff));
    stub_ = proto::v1::Storage::NewStub(
        grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments));
  }

  void send(ShardRequest request, ShardReplyCallback done) {
    const std::size_t bytes = wire_bytes(request);
    Stream* to_start = nullptr;
    Stream* to_write = nullptr;
    {
      std::lock_guard lock(mutex_);
      const Clock::time_point now = Clock::now();
      if (is_stopping_ || (stream_ == nullptr && now < retry_at_)) {
        answerer_.post(std::move(done), reply_of(ShardResult::kUnavailable, last_error_));
        return;
      }
      if (outbox_.size() >= options_.max_outbox_requests ||
          outbox_bytes_ + bytes > options_.max_outbox_bytes) {
        answerer_.post(std::move(done),
                       reply_of(ShardResult::kBusy, str_cat("too much waits for ", address_)));
        return;
      }
      outbox_.push_back({std::move(request), std::move(done), now, bytes});
      outbox_bytes_ += bytes;
      if (stream_ == nullptr) {
        stream_ = new Stream(shared_from_this(), *stub_);
        ++streams_started_;
        is_closed_ = is_broken_ = is_writing_ = false;
        to_start = stream_;
      }
      if (prepare_write()) to_write = stream_;
    }
    if (to_start != nullptr) to_start->start();
    if (to_write != nullptr) to_write->write();
  }

  void on_replies(ReplyBatch& replies) {
    std::vector<std::pair<ShardReplyCallback, ShardReply>> answered;
    answered.reserve(static_cast<std::size_t>(replies.items_size()));
    {
      std::lock_guard lock(mutex_);
      backoff_ = options_.first_backoff;
      for (auto& item : *replies.mutable_items()) {
        auto found = sent_.extract(item.request_id());
        // An answer to nothing that was asked is dropped: it is not ours to judge the node.
        if (found.empty()) continue;
        auto reply = decode_reply(replies.map_epoch(), item);
        answered.emplace_back(std::move(found.mapped()),
                              reply.ok() ? *std::move(reply)
                                         : reply_of(ShardResult::kUnavailable,
                                                    std::string(message_of(reply.status()))));
      }
    }
    for (auto& [done, reply] : answered) done(std::move(reply));
  }

  void on_write_done(Stream& stream, bool ok) {
    bool has_more = false;
    bool is_last = false;
    {
      std::lock_guard lock(mutex_);
      is_writing_ = false;
      is_closed_ = is_closed_ || !ok;
      is_last = is_broken_;
      has_more = prepare_write();
    }
    if (!ok) stream.cancel();
    if (has_more) stream.write();
    if (is_last) stream.release();
  }

  /// The stream has ended, or is to end: no more writes. gRPC calls OnDone when nothing holds it.
  void on_read_failed(Stream& stream) {
    bool is_last = false;
    {
      std::lock_guard lock(mutex_);
      is_closed_ = is_broken_ = true;
      is_last = !is_writing_;
    }
    stream.cancel();
    if (is_last) stream.release();
  }

  void on_done(const grpc::Status& status) {
    std::vector<ShardReplyCallback> unanswered;
    std::string error = str_cat("storage node at ", address_, ": ",
                                status.ok() ? "it ended the stream" : status.error_message());
    {
      std::lock_guard lock(mutex_);
      stream_ = nullptr;
      last_error_ = error;
      retry_at_ = Clock::now() + backoff_;
      backoff_ = std::min(2 * backoff_, options_.longest_backoff);
      for (auto& [id, done] : sent_) unanswered.push_back(std::move(done));
      for (Waiting& waiting : outbox_) unanswered.push_back(std::move(waiting.done));
      sent_.clear();
      outbox_.clear();
      outbox_bytes_ = 0;
    }
    for (ShardReplyCallback& done : unanswered) done(reply_of(ShardResult::kUnavailable, error));
  }

  /// A stream's memory is free.
  void on_gone() {
    std::lock_guard lock(mutex_);
    ++streams_gone_;
    gone_.notify_all();
  }

  /// Ends the stream; returns when nothing is left of any: a process that ends then takes nothing
  /// away from under a thread of gRPC.
  void stop() {
    std::unique_lock lock(mutex_);
    is_stopping_ = true;
    last_error_ = "this process is stopping";
    if (stream_ != nullptr) stream_->cancel();
    gone_.wait(lock, [&] { return streams_gone_ == streams_started_; });
    stub_.reset();
  }

 private:
  struct Waiting {
    ShardRequest request;
    ShardReplyCallback done;
    Clock::time_point since;
    std::size_t bytes;
  };

  /// Fills the stream's batch from the outbox. True: it is to be written. Under mutex_.
  bool prepare_write() {
    if (is_writing_ || is_closed_ || outbox_.empty()) return false;
    RequestBatch& batch = stream_->requests();
    batch.Clear();
    std::size_t bytes = 0;
    const Clock::time_point now = Clock::now();
    while (!outbox_.empty()) {
      Waiting& next = outbox_.front();
      if (batch.items_size() == 0) begin_batch(next.request, batch);
      if (batch.items_size() > 0 &&
          (bytes + next.bytes > kMaxBatchBytes || !belongs_to(next.request, batch)))
        break;
      const auto left =
          next.request.deadline - std::chrono::floor<std::chrono::milliseconds>(now - next.since);
      outbox_bytes_ -= next.bytes;
      if (left <= std::chrono::milliseconds(0)) {
        answerer_.post(std::move(next.done),
                       reply_of(ShardResult::kOverdue, "its time passed before it was sent"));
      } else {
        bytes += next.bytes;
        const std::uint64_t id = ++last_id_;
        encode_request(std::move(next.request), id, left, *batch.add_items());
        sent_.emplace(id, std::move(next.done));
      }
      outbox_.pop_front();
    }
    is_writing_ = batch.items_size() > 0;
    return is_writing_;
  }

  const std::string address_;
  const GrpcTransportOptions options_;
  Answerer& answerer_;
  std::unique_ptr<proto::v1::Storage::Stub> stub_;

  std::mutex mutex_;
  std::condition_variable gone_;
  // The rest is guarded by mutex_.
  Stream* stream_ = nullptr;  ///< until its OnDone
  bool is_writing_ = false;
  bool is_closed_ = false;  ///< no more writes
  bool is_broken_ = false;  ///< no more reads: only OnDone is to come
  bool is_stopping_ = false;
  int streams_started_ = 0;
  int streams_gone_ = 0;
  std::uint64_t last_id_ = 0;
  std::deque<Waiting> outbox_;
  std::size_t outbox_bytes_ = 0;
  std::unordered_map<std::uint64_t, ShardReplyCallback> sent_;
  Clock::time_point retry_at_{};
  std::chrono::milliseconds backoff_ = options_.first_backoff;
  std::string last_error_;
};

void Stream::OnReadDone(bool ok) {
  if (!ok) return peer_->on_read_failed(*this);
  peer_->on_replies(replies_);
  replies_.Clear();
  StartRead(&replies_);
}

void Stream::OnWriteDone(bool ok) { peer_->on_write_done(*this, ok); }

void Stream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<Peer> peer = peer_;
  peer->on_done(status);
  delete this;
  peer->on_gone();
}

class GrpcTransport final : public ShardTransport {
 public:
  explicit GrpcTransport(const GrpcTransportOptions& options) : options_(options) {}

  ~GrpcTransport() override {
    std::map<std::string, std::shared_ptr<Peer>> peers;
    {
      std::lock_guard lock(mutex_);
      peers.swap(peers_);
    }
    for (auto& [address, peer] : peers) peer->stop();
  }

  void send(const std::string& node_address, ShardRequest request,
            ShardReplyCallback done) override {
    if (const std::shared_ptr<Peer> peer = peer_at(node_address)) {
      peer->send(std::move(request), std::move(done));
    } else {
      answerer_.post(std::move(done),
                     reply_of(ShardResult::kUnavailable, "too many addresses of storage nodes"));
    }
  }

 private:
  /// Addresses of one process's life; a cluster has fewer nodes by far.
  static constexpr std::size_t kMaxPeers = 16384;

  std::shared_ptr<Peer> peer_at(const std::string& address) {
    std::lock_guard lock(mutex_);
    const auto found = peers_.find(address);
    if (found != peers_.end()) return found->second;
    if (peers_.size() >= kMaxPeers) return nullptr;
    return peers_.emplace(address, std::make_shared<Peer>(address, options_, answerer_))
        .first->second;
  }

  const GrpcTransportOptions options_;
  Answerer answerer_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Peer>> peers_;  // guarded by mutex_
};

}  // namespace

std::unique_ptr<ShardTransport> make_grpc_transport(const GrpcTransportOptions& options) {
  return std::make_unique<GrpcTransport>(options);
}

}  // namespace millrace::storage::store
