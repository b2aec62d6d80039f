#include "api/entrypoint/engine_link.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <future>
#include <utility>

#include "api/proto/engine.grpc.pb.h"
#include "common/str_cat.h"
#include "common/types.h"
#include "dataplane/cost/cost_wire.h"

namespace millrace::api::entrypoint {
namespace {

using proto::v1::EngineCommand;
using proto::v1::EngineEvents;

std::shared_ptr<grpc::Channel> make_channel(const std::string& address) {
  grpc::ChannelArguments arguments;
  // Reconnecting is ours: every link is a fresh connection, tried once.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

EngineCommand greeting(const LinkIdentity& identity) {
  EngineCommand command;
  auto* hello = command.mutable_hello();
  hello->set_entrypoint_id(identity.entrypoint_id);
  hello->mutable_identity()->set_protocol_version(kProtocolVersion);
  hello->mutable_identity()->set_model_id(identity.model_id);
  hello->mutable_identity()->set_artifact_digest(identity.artifact_digest);
  if (identity.prefill_cost) {
    *hello->mutable_prefill_cost() = dataplane::cost::to_wire(*identity.prefill_cost);
  }
  return command;
}

}  // namespace

/// The transport's side. On*() run on threads of gRPC and only post to the loop; everything else
/// runs on the loop. gRPC refers to the object until OnDone().
///
/// The link is the only owner. gRPC's threads never hold a reference: the last one to a channel
/// must not be dropped there, because it makes gRPC join the thread that drops it.
class EngineLink::Stream final : public grpc::ClientBidiReactor<EngineCommand, EngineEvents>,
                                 public std::enable_shared_from_this<Stream> {
 public:
  Stream(common::http::EventLoop& loop, const std::string& address, Callbacks callbacks)
      : loop_(loop),
        stub_(proto::v1::Engine::NewStub(make_channel(address))),
        callbacks_(std::move(callbacks)),
        done_(std::make_shared<std::promise<void>>()),
        is_done_(done_->get_future()) {}

  void open(EngineCommand first) {
    stub_->async()->Connect(&context_, this);
    // Writes begin outside of reactions, so the call must be held open by hand.
    AddHold();
    StartRead(&incoming_);
    send(std::move(first));
    StartCall();
  }

  void send(EngineCommand command) {
    if (is_ending_) return;
    outgoing_.push_back(std::move(command));
    if (!is_writing_) write_next();
  }

  void cancel() { context_.TryCancel(); }

  /// No callback from here on; returns when gRPC has let go.
  void close() {
    callbacks_ = {};
    cancel();
    end();
    is_done_.wait();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      post([](Stream& stream) { stream.end(); });
      return;
    }
    auto events = std::make_shared<EngineEvents>(std::move(incoming_));
    incoming_.Clear();
    post([events](Stream& stream) {
      // A copy: the callback may close the link, and with it the function.
      const auto on_events = stream.callbacks_.on_events;
      if (on_events) on_events(*events);
    });
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    post([ok](Stream& stream) {
      stream.is_writing_ = false;
      stream.outgoing_.pop_front();
      if (!ok) {
        stream.end();
      } else if (!stream.outgoing_.empty() && !stream.is_ending_) {
        stream.write_next();
      }
    });
  }

  void OnDone(const grpc::Status& status) override {
    absl::Status reason(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
    post([reason](Stream& stream) {
      const auto on_down = std::exchange(stream.callbacks_, {}).on_down;
      if (on_down) on_down(reason);
    });
    // With the value set the object may be gone at once, so the promise must not be a part of it.
    const std::shared_ptr<std::promise<void>> done = done_;
    done->set_value();
  }

 private:
  /// Runs a function on the loop, if the link still exists then.
  void post(std::function<void(Stream&)> function) {
    loop_.post([weak = weak_from_this(), function = std::move(function)] {
      if (const std::shared_ptr<Stream> stream = weak.lock()) function(*stream);
    });
  }

  void write_next() {
    is_writing_ = true;
    StartWrite(&outgoing_.front());
  }

  /// The stream works no more: lets gRPC finish the call.
  void end() {
    if (std::exchange(is_ending_, true)) return;
    RemoveHold();
  }

  common::http::EventLoop& loop_;
  const std::unique_ptr<proto::v1::Engine::Stub> stub_;
  Callbacks callbacks_;
  grpc::ClientContext context_;
  EngineEvents incoming_;
  std::deque<EngineCommand> outgoing_;  // the front one is being written
  bool is_writing_ = false;
  bool is_ending_ = false;
  const std::shared_ptr<std::promise<void>> done_;
  const std::future<void> is_done_;
};

EngineLink::EngineLink(common::http::EventLoop& loop, const std::string& address,
                       const LinkIdentity& identity, Callbacks callbacks)
    : stream_(std::make_shared<Stream>(loop, address, std::move(callbacks))) {
  stream_->open(greeting(identity));
}

EngineLink::~EngineLink() { stream_->close(); }

void EngineLink::send(EngineCommand command) { stream_->send(std::move(command)); }
void EngineLink::cancel() { stream_->cancel(); }

}  // namespace millrace::api::entrypoint
