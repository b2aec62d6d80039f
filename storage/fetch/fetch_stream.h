#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "api/proto/kvfetch.grpc.pb.h"
#include "common/log/log.h"
#include "storage/fetch/event_queue.h"
#include "storage/fetch/fetch_types.h"

// Internal to fetch_server.cc and fetch_stream.cc: the one header here that knows gRPC.

namespace millrace::storage::fetch {

/// What an engine is told when its stream is accepted.
struct Welcome {
  ArenaTicket read_arena;
  ArenaTicket write_arena;
  std::uint32_t block_bytes = 0;
  std::optional<ArenaTicket> window_arena;
  std::uint32_t window_bytes = 0;
};

/// One Connect stream: decodes commands into the queue, sends batches from a bounded outbox.
///
/// gRPC calls the On... functions one at a time per kind from its own threads; push() and end()
/// come from others. One mutex guards the outbox and what is under way; no gRPC call that could
/// block happens at all.
class FetchStream final
    : public grpc::ServerBidiReactor<proto::v1::KvFetchCommands, proto::v1::KvFetchEvents>,
      public std::enable_shared_from_this<FetchStream> {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    /// gRPC is done with the stream; the owner lets go of it.
    virtual void on_done(SessionId session, bool was_opened) = 0;
  };

  FetchStream(SessionId session, const Welcome& welcome, EventQueue& queue, Owner& owner,
              const Logger& log);

  /// Starts reading. Not in the constructor, so that events never meet a half-made object.
  void begin();
  void push(const std::vector<SessionEvent>& events);
  /// Ends the stream once what is queued has been sent.
  void end(const grpc::Status& status);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  enum class Outbox { kSend, kDrop };

  bool is_ended() const;
  void on_hello();
  void on_commands();
  /// False: the stream ends.
  bool take(const proto::v1::KvFetchCommand& wire);
  void enqueue(proto::v1::KvFetchEvents message);
  void send_next();
  void finish(const grpc::Status& status, Outbox outbox);
  void maybe_finish();

  const SessionId session_;
  const Welcome welcome_;
  EventQueue& queue_;
  Owner& owner_;
  const Logger log_;
  proto::v1::KvFetchCommands incoming_;  // the read under way owns it
  std::string client_id_;                // set by the Hello, in OnReadDone
  bool is_opened_ = false;               // likewise

  mutable std::mutex mutex_;                     // guards all below
  std::deque<proto::v1::KvFetchEvents> outbox_;  // front: the write under way, if is_writing_
  bool is_writing_ = false;
  std::optional<grpc::Status> end_status_;  // asked to end
  bool is_finished_ = false;                // Finish was called
};

}  // namespace millrace::storage::fetch
