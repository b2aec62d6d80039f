#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/http/event_loop.h"
#include "dataplane/cost/cost_model.h"

namespace millrace::proto::v1 {
class EngineCommand;
class EngineEvents;
}  // namespace millrace::proto::v1

namespace millrace::api::entrypoint {

/// What an entrypoint says of itself to a worker.
struct LinkIdentity {
  std::string model_id;
  std::string artifact_digest;  ///< raw bytes
  std::string entrypoint_id;
  std::optional<dataplane::cost::CostModel> prefill_cost;  ///< of the routing view
};

/// One bidirectional stream to one worker process: commands down, events up. Its callbacks run on
/// the event loop, and none after the destructor, which cancels the stream and waits until the
/// transport has let go of it (milliseconds; nothing is asked of the peer).
///
/// Belongs to the loop's thread. It opens once: after on_down it is of no more use.
class EngineLink {
 public:
  struct Callbacks {
    /// A message of the worker; the first one answers our greeting.
    std::function<void(const proto::v1::EngineEvents&)> on_events;
    /// The stream is over, whatever the reason. Called once at most.
    std::function<void(absl::Status)> on_down;
  };
  EngineLink(common::http::EventLoop& loop, const std::string& address,
             const LinkIdentity& identity, Callbacks callbacks);
  ~EngineLink();
  EngineLink(const EngineLink&) = delete;
  EngineLink& operator=(const EngineLink&) = delete;

  /// Queues a command. The queue is as long as the requests that this worker serves for us.
  void send(proto::v1::EngineCommand command);

  /// Ends the stream from this side; on_down follows.
  void cancel();

 private:
  class Stream;
  std::shared_ptr<Stream> stream_;
};

}  // namespace millrace::api::entrypoint
