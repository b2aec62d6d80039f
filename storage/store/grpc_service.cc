#include "storage/store/grpc_service.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "api/proto/storage.grpc.pb.h"
#include "common/str_cat.h"
#include "storage/store/wire_codec.h"

namespace millrace::storage::store {
namespace {

using RequestBatch = proto::v1::ShardRequestBatch;
using ReplyBatch = proto::v1::ShardReplyBatch;

/// Clients ask after 10 s of silence; more often than every 5 s is rude.
constexpr int kShortestPingIntervalMs = 5000;

ShardReply reply_of(ShardResult result, std::string message) {
  ShardReply reply;
  reply.result = result;
  reply.message = std::move(message);
  return reply;
}

class Exchange;

/// Replies of one stream on their way out. The endpoint's callbacks hold it, so that a reply that
/// comes after the stream has ended finds a place that takes nothing.
class ReplyQueue {
 public:
  ReplyQueue(Exchange& exchange, const StorageServiceOptions& options)
      : exchange_(exchange), options_(options) {}

  /// A request is about to be handled. False: too many are.
  bool admit() {
    std::lock_guard lock(mutex_);
    if (in_flight_ >= options_.max_requests_in_flight) return false;
    ++in_flight_;
    return true;
  }
  void complete(std::uint64_t request_id, ShardReply reply) {
    put(request_id, std::move(reply), 1);
  }
  /// A reply to what was not admitted.
  void refuse(std::uint64_t request_id, ShardReply reply) { put(request_id, std::move(reply), 0); }

  void on_write_done(bool ok);
  /// Nothing more is wanted, and the stream ends with this status when the write under way is over.
  void close(const grpc::Status& status);

 private:
  struct Waiting {
    std::uint64_t request_id;
    ShardReply reply;
    std::size_t bytes;
  };

  void put(std::uint64_t request_id, ShardReply reply, std::size_t admitted);
  bool prepare_write();

  Exchange& exchange_;  ///< alive until is_closed_ and no write is under way
  const StorageServiceOptions options_;
  std::mutex mutex_;
  // The rest is guarded by mutex_.
  std::deque<Waiting> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::size_t in_flight_ = 0;
  bool is_writing_ = false;
  bool is_closed_ = false;
  grpc::Status status_;
};

/// One stream of one client, until its OnDone. Owned by itself, as gRPC wants it.
class Exchange final : public grpc::ServerBidiReactor<RequestBatch, ReplyBatch> {
 public:
  Exchange(ShardEndpoint& endpoint, const StorageServiceOptions& options)
      : endpoint_(endpoint), replies_(std::make_shared<ReplyQueue>(*this, options)) {
    StartRead(&requests_);
  }

  ReplyBatch& batch() { return batch_; }
  void write() { StartWrite(&batch_); }
  void finish(const grpc::Status& status) { Finish(status); }

  void OnReadDone(bool ok) override {
    if (!ok) return replies_->close(grpc::Status::OK);
    const absl::Status versions = check_versions(requests_);
    if (!versions.ok()) {
      return replies_->close(
          {grpc::StatusCode::FAILED_PRECONDITION, std::string(message_of(versions))});
    }
    for (auto& item : *requests_.mutable_items()) handle(item);
    requests_.Clear();
    StartRead(&requests_);
  }

  void OnWriteDone(bool ok) override { replies_->on_write_done(ok); }
  // The read that is always under way fails at the latest now, and closes.
  void OnCancel() override {}
  void OnDone() override { delete this; }

 private:
  void handle(proto::v1::ShardRequestItem& item) {
    const std::uint64_t id = item.request_id();
    absl::StatusOr<ShardRequest> request = decode_request(requests_, item);
    if (!request.ok()) {
      return replies_->refuse(
          id, reply_of(ShardResult::kInvalid, std::string(message_of(request.status()))));
    }
    if (!replies_->admit()) {
      return replies_->refuse(
          id, reply_of(ShardResult::kBusy, "too many requests of this client are in flight"));
    }
    endpoint_.handle(*std::move(request), [replies = replies_, id](ShardReply reply) {
      replies->complete(id, std::move(reply));
    });
  }

  ShardEndpoint& endpoint_;
  const std::shared_ptr<ReplyQueue> replies_;
  RequestBatch requests_;
  ReplyBatch batch_;
};

void ReplyQueue::put(std::uint64_t request_id, ShardReply reply, std::size_t admitted) {
  {
    std::lock_guard lock(mutex_);
    in_flight_ -= admitted;
    if (is_closed_) return;
    if (waiting_bytes_ + wire_bytes(reply) > options_.max_waiting_reply_bytes) {
      const std::uint64_t epoch = reply.map_epoch;
      reply = reply_of(ShardResult::kBusy, "too many replies wait for this client");
      reply.map_epoch = epoch;
    }
    const std::size_t bytes = wire_bytes(reply);
    waiting_bytes_ += bytes;
    waiting_.push_back({request_id, std::move(reply), bytes});
    if (!prepare_write()) return;
  }
  exchange_.write();
}

/// Fills the stream's batch. True: it is to be written. Under mutex_.
bool ReplyQueue::prepare_write() {
  if (is_writing_ || is_closed_ || waiting_.empty()) return false;
  ReplyBatch& batch = exchange_.batch();
  batch.Clear();
  batch.set_map_epoch(waiting_.front().reply.map_epoch);
  std::size_t bytes = 0;
  while (!waiting_.empty()) {
    Waiting& next = waiting_.front();
    if (batch.items_size() > 0 &&
        (bytes + next.bytes > kMaxBatchBytes || next.reply.map_epoch != batch.map_epoch()))
      break;
    bytes += next.bytes;
    waiting_bytes_ -= next.bytes;
    encode_reply(std::move(next.reply), next.request_id, *batch.add_items());
    waiting_.pop_front();
  }
  is_writing_ = true;
  return true;
}

void ReplyQueue::on_write_done(bool ok) {
  bool has_more = false;
  bool is_last = false;
  {
    std::lock_guard lock(mutex_);
    is_writing_ = false;
    // A failed write means that the client is gone: the read fails too, and closes.
    has_more = ok && prepare_write();
    is_last = is_closed_;
  }
  if (has_more) exchange_.write();
  if (is_last) exchange_.finish(status_);
}

void ReplyQueue::close(const grpc::Status& status) {
  {
    std::lock_guard lock(mutex_);
    is_closed_ = true;
    status_ = status;
    waiting_.clear();
    waiting_bytes_ = 0;
    if (is_writing_) return;
  }
  exchange_.finish(status);
}

class StorageService final : public proto::v1::Storage::CallbackService {
 public:
  StorageService(ShardEndpoint& endpoint, const StorageServiceOptions& options)
      : endpoint_(endpoint), options_(options) {}

  grpc::ServerBidiReactor<RequestBatch, ReplyBatch>* Exchange(
      grpc::CallbackServerContext*) override {
    return new store::Exchange(endpoint_, options_);
  }

 private:
  ShardEndpoint& endpoint_;
  const StorageServiceOptions options_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_storage_service(ShardEndpoint& endpoint,
                                                    const StorageServiceOptions& options) {
  return std::make_unique<StorageService>(endpoint, options);
}

void configure_storage_server(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kShortestPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

}  // namespace millrace::storage::store
