#include "agent/server/agent.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/annotate.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/types.h"

namespace millrace::agent::server {
namespace {

/// A reply that does not fit is repeated by the next heartbeat.
constexpr std::size_t kReplyCapacity = 16;
constexpr std::chrono::seconds kLongestWait{10};

using Clock = std::chrono::steady_clock;

/// New for every start of an agent.
std::string new_session_id() {
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  return str_cat(getpid(), "-",
                 std::chrono::duration_cast<std::chrono::microseconds>(time).count());
}

LinkOptions link_options(const AgentOptions& options) {
  LinkOptions link;
  link.controller_url = options.supervisor.node.controller_url;
  link.self.protocol_version = kProtocolVersion;
  link.self.node_id = options.supervisor.node.node_id;
  link.self.host_id = options.supervisor.node.host_id;
  link.self.session_id = new_session_id();
  link.self.address = options.address;
  return link;
}

}  // namespace

Agent::Agent(const AgentOptions& options, NodeLock lock, Logger log,
             telemetry::AgentMetrics& metrics)
    : options_(options),
      log_(std::move(log)),
      metrics_(metrics),
      lock_(std::move(lock)),
      supervision_(options.supervision, lock_.epoch()),
      replies_(kReplyCapacity) {}

absl::StatusOr<std::unique_ptr<Agent>> Agent::create(const AgentOptions& options, NodeLock lock,
                                                     Logger log, telemetry::AgentMetrics& metrics) {
  std::unique_ptr<Agent> agent(new Agent(options, std::move(lock), log, metrics));
  ASSIGN_OR_RETURN(agent->supervisor_, supervisor::Supervisor::open(options.supervisor));
  agent->link_ = std::make_unique<ControllerLink>(
      link_options(options),
      [raw = agent.get()](api::admin::HeartbeatReply reply) {
        static_cast<void>(
            raw->replies_.try_push(std::make_unique<api::admin::HeartbeatReply>(std::move(reply))));
        raw->supervisor_->wake();
      },
      std::move(log), metrics);
  return agent;
}

absl::Status Agent::run(const ShutdownCount& shutdown_count, int shutdown_fd) {
  publish();
  link_->start();
  int shutdowns_seen = 0;
  while (shutdowns_seen == 0 || !supervision_.is_idle()) {
    const TimePoint now = Clock::now();
    const TimePoint until = supervision_.next_timer().value_or(now + kLongestWait);
    // Once readable, the descriptor stays so: from then on the count is looked at regularly.
    const bool is_watching = shutdowns_seen == 0;
    const TimePoint latest = is_watching ? now + kLongestWait : now + std::chrono::milliseconds(50);
    const std::vector<core::Event> events =
        supervisor_->wait(std::min(until, latest), is_watching ? shutdown_fd : -1);
    const TimePoint woken = Clock::now();
    for (const core::Event& event : events) apply(event, woken);
    RETURN_IF_ERROR(take_replies(woken));
    const int shutdowns = shutdown_count();
    if (shutdowns > shutdowns_seen) {
      log_.info("stopping", {{"at_once", shutdowns > 1}});
      apply(shutdowns > 1 ? core::Event(core::ShutDownNow{}) : core::Event(core::ShutDown{}),
            woken);
      shutdowns_seen = shutdowns;
    }
    apply(core::TimerDue{}, woken);
    publish();
  }
  link_->leave();
  return absl::OkStatus();
}

absl::Status Agent::take_replies(TimePoint now) {
  while (std::optional<std::unique_ptr<api::admin::HeartbeatReply>> popped = replies_.try_pop()) {
    api::admin::HeartbeatReply& reply = **popped;
    if (reply.epoch > lock_.epoch()) {
      RETURN_IF_ERROR(annotate(lock_.store_epoch(reply.epoch), "the epoch cannot be stored"));
      metrics_.epoch.set(static_cast<double>(reply.epoch));
    }
    apply(core::Assigned{std::move(reply)}, now);
    const core::AssignmentVerdict verdict = supervision_.last_verdict();
    if (verdict == core::AssignmentVerdict::kTaken) continue;
    const bool is_epoch = verdict == core::AssignmentVerdict::kOldEpoch;
    metrics_.refusals.with({is_epoch ? "old_epoch" : "old_revision"}).add();
    log_.warn("assignment_refused", {{"reason", is_epoch ? "old_epoch" : "old_revision"},
                                     {"obeyed_epoch", supervision_.epoch()}});
  }
  return absl::OkStatus();
}

void Agent::apply(const core::Event& event, TimePoint now) {
  if (const auto* ready = std::get_if<core::BecameReady>(&event)) {
    log_.info("process_ready",
              {{"worker_id", ready->worker_id}, {"address", ready->ready.address}});
  } else if (const auto* exited = std::get_if<core::Exited>(&event)) {
    log_.info("process_exited", {{"worker_id", exited->worker_id}, {"reason", exited->reason}});
  }
  for (const core::Command& command : supervision_.on_event(event, now)) execute(command, now);
}

void Agent::execute(const core::Command& command, TimePoint now) {
  if (const auto* signal = std::get_if<core::SignalProcess>(&command)) {
    log_.info("process_signalled", {{"worker_id", signal->worker_id},
                                    {"kill", signal->signal == core::StopSignal::kKill}});
    supervisor_->signal(*signal);
    return;
  }
  const auto& start = std::get<core::StartProcess>(command);
  const std::string& worker_id = start.spec.worker_id;
  const absl::StatusOr<std::int64_t> pid = supervisor_->start(start.spec, start.incarnation);
  if (!pid.ok()) {
    log_.error("process_not_started",
               {{"worker_id", worker_id}, {"reason", message_of(pid.status())}});
    return apply(
        core::StartFailed{worker_id, start.incarnation, std::string(message_of(pid.status()))},
        now);
  }
  metrics_.starts.with({process_role_name(start.spec.role)}).add();
  log_.info("process_started",
            {{"worker_id", worker_id}, {"incarnation", start.incarnation}, {"pid", *pid}});
  apply(core::Started{worker_id, start.incarnation, *pid}, now);
}

void Agent::publish() {
  LinkReport report;
  report.epoch = supervision_.epoch();
  report.revision = supervision_.revision();
  report.processes = supervision_.report();
  metrics_.observe(report.processes);
  link_->publish(std::move(report));
}

api::admin::AgentState Agent::state() const {
  LinkReport report = link_->report();
  api::admin::AgentState state;
  state.node_id = options_.supervisor.node.node_id;
  state.host_id = options_.supervisor.node.host_id;
  state.epoch = report.epoch;
  state.is_connected = link_->is_connected();
  state.processes = std::move(report.processes);
  return state;
}

}  // namespace millrace::agent::server
