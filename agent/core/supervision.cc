#include "agent/core/supervision.h"

#include <algorithm>
#include <utility>

#include "common/str_cat.h"

namespace millrace::agent::core {

using api::admin::AssignedProcess;
using api::admin::ProcessReport;
using api::admin::ProcessRole;
using api::admin::ProcessState;

std::chrono::milliseconds backoff(int failures) {
  std::chrono::milliseconds pause = kFirstBackoff;
  for (int count = 1; count < failures && pause < kLongestBackoff; ++count) pause *= 2;
  return std::min(pause, kLongestBackoff);
}

std::vector<Command> Supervision::on_event(const Event& event, TimePoint now) {
  std::visit([&](const auto& kind) { apply(kind, now); }, event);
  for (auto& [worker_id, slot] : slots_) settle(worker_id, slot, now);
  std::erase_if(slots_, [this](const auto& entry) {
    const Slot& slot = entry.second;
    if (slot.phase != Phase::kIdle || slot.wanted) return false;
    retired_incarnation_ = std::max(retired_incarnation_, slot.incarnation);
    return true;
  });
  return std::exchange(commands_, {});
}

void Supervision::apply(const Assigned& event, TimePoint now) {
  const api::admin::HeartbeatReply& reply = event.reply;
  last_verdict_ = AssignmentVerdict::kTaken;
  if (reply.epoch < epoch_) {
    last_verdict_ = AssignmentVerdict::kOldEpoch;
  } else if (reply.epoch == epoch_ && reply.revision < revision_) {
    last_verdict_ = AssignmentVerdict::kOldRevision;
  }
  if (last_verdict_ != AssignmentVerdict::kTaken) return;
  epoch_ = reply.epoch;
  revision_ = reply.revision;
  if (!reply.assignment) return;
  std::map<std::string, const AssignedProcess*> assigned;
  for (const AssignedProcess& process : *reply.assignment) {
    assigned[process.spec.worker_id] = &process;
  }
  for (auto& [worker_id, slot] : slots_) {
    if (!assigned.contains(worker_id)) slot.wanted.reset();
  }
  for (const auto& [worker_id, process] : assigned) {
    Slot& slot = slots_[worker_id];
    slot.incarnation_floor = std::max(slot.incarnation_floor, process->incarnation_floor);
    if (slot.wanted == process->spec) continue;
    slot.wanted = process->spec;
    slot.failures = 0;  // another spec, another chance
    slot.was_ever_ready = false;
    slot.next_start = now;
  }
}

Supervision::Slot* Supervision::current(const std::string& worker_id, std::uint64_t incarnation) {
  const auto it = slots_.find(worker_id);
  const bool is_current = it != slots_.end() && it->second.phase != Phase::kIdle &&
                          it->second.incarnation == incarnation;
  return is_current ? &it->second : nullptr;
}

void Supervision::apply(const Started& event, TimePoint) {
  if (Slot* slot = current(event.worker_id, event.incarnation)) slot->pid = event.pid;
}

void Supervision::apply(const StartFailed& event, TimePoint now) {
  if (Slot* slot = current(event.worker_id, event.incarnation)) fail(*slot, event.reason, now);
}

void Supervision::apply(const BecameReady& event, TimePoint now) {
  Slot* slot = current(event.worker_id, event.incarnation);
  if (slot == nullptr || slot->phase != Phase::kStarting) return;
  slot->phase = Phase::kReady;
  slot->ready = event.ready;
  slot->ready_since = now;
  slot->deadline.reset();
  slot->was_ever_ready = true;
}

void Supervision::apply(const Exited& event, TimePoint now) {
  Slot* slot = current(event.worker_id, event.incarnation);
  if (slot == nullptr) return;
  if (slot->phase != Phase::kStopping) {
    const bool was_healthy =
        slot->phase == Phase::kReady && now - slot->ready_since >= kHealthyAfter;
    if (was_healthy) slot->failures = 0;
    fail(*slot, slot->kill_reason.empty() ? event.reason : slot->kill_reason, now);
    return;
  }
  slot->phase = Phase::kIdle;
  slot->pid = 0;
  slot->deadline.reset();
  slot->failures = 0;
  slot->next_start = now;
}

/// The process is gone without having been told to.
void Supervision::fail(Slot& slot, std::string reason, TimePoint now) {
  slot.phase = Phase::kIdle;
  slot.pid = 0;
  slot.deadline.reset();
  slot.last_error = std::move(reason);
  ++slot.failures;
  ++slot.restarts;
  slot.next_start = now + backoff(slot.failures);
}

void Supervision::apply(const ShutDown&, TimePoint) { is_shutting_down_ = true; }

void Supervision::apply(const ShutDownNow&, TimePoint now) {
  is_shutting_down_ = true;
  is_killing_ = true;
  for (auto& [worker_id, slot] : slots_) {
    if (slot.phase != Phase::kIdle) slot.deadline = now;
  }
}

bool Supervision::should_run(const Slot& slot) const {
  return !is_shutting_down_ && slot.wanted && *slot.wanted == slot.running;
}

/// At a shutdown the entrypoints go first, so that what they still serve finds its engines.
bool Supervision::may_stop(const Slot& slot) const {
  if (!is_shutting_down_ || is_killing_ || slot.running.role == ProcessRole::kEntrypoint) {
    return true;
  }
  return std::none_of(slots_.begin(), slots_.end(), [](const auto& entry) {
    return entry.second.phase != Phase::kIdle &&
           entry.second.running.role == ProcessRole::kEntrypoint;
  });
}

void Supervision::settle(const std::string& worker_id, Slot& slot, TimePoint now) {
  if (slot.phase == Phase::kIdle) {
    if (is_shutting_down_) slot.wanted.reset();
    if (!slot.wanted || now < slot.next_start) return;
    slot.incarnation =
        std::max({slot.incarnation, slot.incarnation_floor, retired_incarnation_}) + 1;
    slot.running = *slot.wanted;
    slot.phase = Phase::kStarting;
    slot.ready = {};
    slot.kill_reason.clear();
    slot.deadline = now + options_.start_timeout;
    commands_.push_back(StartProcess{slot.running, slot.incarnation});
    return;
  }
  if (slot.phase != Phase::kStopping && !should_run(slot) && may_stop(slot)) {
    slot.phase = Phase::kStopping;
    if (!is_killing_) {
      slot.deadline = now + options_.stop_grace;
      commands_.push_back(SignalProcess{worker_id, slot.incarnation, StopSignal::kTerminate});
      return;
    }
  }
  if (!slot.deadline || now < *slot.deadline) return;
  if (slot.phase == Phase::kStarting) {
    slot.kill_reason = str_cat(
        "not ready after ",
        std::chrono::duration_cast<std::chrono::seconds>(options_.start_timeout).count(), " s");
  }
  slot.deadline.reset();
  commands_.push_back(SignalProcess{worker_id, slot.incarnation, StopSignal::kKill});
}

std::optional<TimePoint> Supervision::next_timer() const {
  std::optional<TimePoint> next;
  const auto consider = [&](TimePoint due) {
    if (!next || due < *next) next = due;
  };
  for (const auto& [worker_id, slot] : slots_) {
    if (slot.phase == Phase::kIdle) {
      if (slot.wanted) consider(slot.next_start);
    } else if (slot.deadline) {
      consider(*slot.deadline);
    }
  }
  return next;
}

std::vector<ProcessReport> Supervision::report() const {
  std::vector<ProcessReport> reports;
  for (const auto& [worker_id, slot] : slots_) {
    ProcessReport report;
    report.worker_id = worker_id;
    report.role = slot.running.role;
    report.incarnation = slot.incarnation;
    report.pid = slot.pid;
    report.restarts = slot.restarts;
    report.last_error = slot.last_error;
    switch (slot.phase) {
      case Phase::kIdle:
        report.state = !slot.was_ever_ready && slot.failures >= kFailingAfter
                           ? ProcessState::kFailing
                           : ProcessState::kBackoff;
        break;
      case Phase::kStarting:
        report.state = ProcessState::kStarting;
        break;
      case Phase::kReady:
        report.state = ProcessState::kReady;
        break;
      case Phase::kStopping:
        report.state = ProcessState::kDraining;
        break;
    }
    if (slot.phase == Phase::kReady || slot.phase == Phase::kStopping) {
      report.address = slot.ready.address;
      report.metrics_address = slot.ready.metrics_address;
      report.model_id = slot.ready.model_id;
      report.artifact_digest_hex = slot.ready.artifact_digest_hex;
      report.directory_address = slot.ready.directory_address;
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

bool Supervision::is_idle() const {
  return std::all_of(slots_.begin(), slots_.end(),
                     [](const auto& entry) { return entry.second.phase == Phase::kIdle; });
}

}  // namespace millrace::agent::core
