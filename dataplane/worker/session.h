#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "api/proto/engine.grpc.pb.h"
#include "common/log/log.h"
#include "dataplane/cost/cost_model.h"
#include "dataplane/transfer/identity.h"
#include "dataplane/worker/command_queue.h"
#include "dataplane/worker/wire.h"

// Internal to worker_server.cc and session.cc: the one header here that knows gRPC.

namespace millrace::dataplane::worker {

/// One Connect stream: decodes commands into the queue, sends batches from a bounded outbox.
///
/// gRPC calls the On... functions one at a time per kind from its own threads; push(), heartbeat()
/// and end() come from others. One mutex guards the outbox and what is under way; no gRPC call that
/// could block happens at all.
class Session final
    : public grpc::ServerBidiReactor<proto::v1::EngineCommand, proto::v1::EngineEvents>,
      public std::enable_shared_from_this<Session> {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    /// What to tell a stream of the load before the engine has spoken to it.
    virtual Load current_load() const = 0;
    /// Whether the worker would claim now. Called with the session's mutex held.
    virtual bool wants_more() const = 0;
    virtual void on_cost(const cost::CostModel& published) = 0;
    virtual void on_offers(StreamId stream, const StreamOffers& offers) = 0;
    virtual void on_granted(StreamId stream, std::uint64_t claim) = 0;
    /// A start is about to be queued for the engine; rows behind cached ones, 0 without a prefill.
    virtual void on_coming(StreamId stream, const cost::Chunk& work) = 0;
    /// It found no room there.
    virtual void on_not_coming(StreamId stream) = 0;
    /// gRPC is done with the session; the owner lets go of it.
    virtual void on_done(StreamId stream, bool was_opened) = 0;
  };

  /// naming: null when the worker has no KV store.
  Session(StreamId stream, const transfer::PeerIdentity& identity,
          const std::optional<KvNaming>& naming, CommandQueue& commands, Owner& owner,
          const Logger& log);

  /// Starts reading. Not in the constructor, so that events never meet a half-made object.
  void begin();
  /// Sends the events, if any, and news of what must not wait: that the worker wants more.
  /// Remembers the load for heartbeats.
  void push(const StreamBatch& batch, const Load& load);
  /// Asks for a request.
  void claim(const routing::ClaimDesk::Claim& claim);
  /// Sends the load when nothing was sent for a while.
  void heartbeat(std::chrono::steady_clock::time_point now);
  /// Ends the stream once what is queued has been sent.
  void end(const grpc::Status& status);
  bool is_ended() const;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  enum class Outbox { kSend, kDrop };

  void on_hello();
  void on_command();
  void on_offers();
  bool queue(Command command);
  void answer_failed(const RequestKey& key, const absl::Status& status);
  void add_load(proto::v1::EngineEvents& message);
  void enqueue(proto::v1::EngineEvents message);
  void send_next();
  void finish(const grpc::Status& status, Outbox outbox);
  void maybe_finish();

  const StreamId stream_;
  const transfer::PeerIdentity identity_;
  const std::optional<KvNaming> naming_;
  CommandQueue& commands_;
  Owner& owner_;
  const Logger log_;
  proto::v1::EngineCommand incoming_;  // the read under way owns it
  std::string entrypoint_id_;          // set by the Hello, in OnReadDone
  bool is_opened_ = false;             // likewise

  mutable std::mutex mutex_;                    // guards all below
  std::deque<proto::v1::EngineEvents> outbox_;  // front: the write under way, if is_writing_
  bool is_writing_ = false;
  std::optional<grpc::Status> end_status_;  // asked to end
  bool is_finished_ = false;                // Finish was called
  bool is_greeted_ = false;
  Load load_;
  std::uint64_t started_requests_ = 0;  // taken up by the engine
  std::uint64_t refused_requests_ = 0;  // answered here
  std::uint64_t loads_sent_ = 0;
  bool has_told_wish_ = false;  // the last load said that the worker wants more
  std::optional<cost::CostModel> sent_cost_;
  std::chrono::steady_clock::time_point last_sent_;
};

}  // namespace millrace::dataplane::worker
