#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/core/supervision.h"
#include "agent/server/controller_link.h"
#include "agent/server/node_lock.h"
#include "agent/supervisor/supervisor.h"
#include "agent/telemetry/agent_metrics.h"
#include "common/log/log.h"
#include "common/mailbox.h"

namespace millrace::agent::server {

struct AgentOptions {
  supervisor::SupervisorOptions supervisor;
  core::SupervisionOptions supervision;
  std::string address;  ///< host:port of the agent's own REST listener
};

/// The shell around core::Supervision. The thread that calls run() owns the decisions and the child
/// processes; the link to the controller has its own.
class Agent {
 public:
  static absl::StatusOr<std::unique_ptr<Agent>> create(const AgentOptions& options, NodeLock lock,
                                                       Logger log,
                                                       telemetry::AgentMetrics& metrics);

  /// Asked after every wake-up: 0 = go on, 1 = stop everything in order, more = kill everything.
  using ShutdownCount = std::function<int()>;

  /// Supervises until a shutdown is complete; `shutdown_fd` becomes readable when the count leaves
  /// 0. Call it once. Not OK when the epoch cannot be stored.
  absl::Status run(const ShutdownCount& shutdown_count, int shutdown_fd);

  /// GET /api/v1/state. Any thread.
  api::admin::AgentState state() const;

 private:
  Agent(const AgentOptions& options, NodeLock lock, Logger log, telemetry::AgentMetrics& metrics);

  absl::Status take_replies(TimePoint now);
  void apply(const core::Event& event, TimePoint now);
  void execute(const core::Command& command, TimePoint now);
  void publish();

  const AgentOptions options_;
  const Logger log_;
  telemetry::AgentMetrics& metrics_;
  NodeLock lock_;
  core::Supervision supervision_;
  std::unique_ptr<supervisor::Supervisor> supervisor_;
  // Behind a pointer because g++ 12 warns, wrongly, about an optional inside an optional.
  Mailbox<std::unique_ptr<api::admin::HeartbeatReply>> replies_;
  std::unique_ptr<ControllerLink> link_;
};

}  // namespace millrace::agent::server
