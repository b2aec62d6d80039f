#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "api/admin/node.h"
#include "api/admin/process.h"
#include "common/time_point.h"

namespace millrace::agent::core {

struct SupervisionOptions {
  std::chrono::milliseconds start_timeout{600'000};  ///< from start to the ready-file
  std::chrono::milliseconds stop_grace{
      90'000};  ///< from SIGTERM to SIGKILL; above an entrypoint's own 60 s
};

/// Pause before the n-th start in a row: 0.1 s, doubled each time, at most 10 s; counted anew once
/// a process was ready for 30 s.
inline constexpr std::chrono::milliseconds kFirstBackoff{100};
inline constexpr std::chrono::milliseconds kLongestBackoff{10'000};
inline constexpr std::chrono::seconds kHealthyAfter{30};
/// So many starts in a row that never became ready are reported as "failing".
inline constexpr int kFailingAfter = 5;

std::chrono::milliseconds backoff(int failures);

/// What happened.
struct Assigned {
  api::admin::HeartbeatReply reply;
};
struct Started {
  std::string worker_id;
  std::uint64_t incarnation = 0;
  std::int64_t pid = 0;
};
struct StartFailed {
  std::string worker_id;
  std::uint64_t incarnation = 0;
  std::string reason;
};
struct BecameReady {
  std::string worker_id;
  std::uint64_t incarnation = 0;
  api::admin::ReadyFile ready;
};
struct Exited {
  std::string worker_id;
  std::uint64_t incarnation = 0;
  std::string reason;
};
struct TimerDue {};
/// SIGTERM to the agent itself: stop everything, entrypoints before engines.
struct ShutDown {};
/// The second one: kill everything.
struct ShutDownNow {};
using Event = std::variant<Assigned, Started, StartFailed, BecameReady, Exited, TimerDue, ShutDown,
                           ShutDownNow>;

/// What is to be done.
struct StartProcess {
  api::admin::ProcessSpec spec;
  std::uint64_t incarnation = 0;
};
enum class StopSignal { kTerminate, kKill };
struct SignalProcess {
  std::string worker_id;
  std::uint64_t incarnation = 0;
  StopSignal signal = StopSignal::kTerminate;
};
using Command = std::variant<StartProcess, SignalProcess>;

/// Whether an assignment was taken over, or why not.
enum class AssignmentVerdict { kTaken, kOldEpoch, kOldRevision };

/// Decides which of the node's processes to start and to stop, from what is assigned and what
/// happens to them. At most one process per worker id at any time: a successor starts only after
/// the exit of its predecessor was seen.
///
/// Pure: no I/O, no clock. One thread at a time.
class Supervision {
 public:
  /// `epoch` is the highest that this node ever obeyed.
  Supervision(const SupervisionOptions& options, std::uint64_t epoch)
      : options_(options), epoch_(epoch) {}

  std::vector<Command> on_event(const Event& event, TimePoint now);

  /// When a TimerDue is next wanted.
  std::optional<TimePoint> next_timer() const;

  /// Every process as the controller should see it, ordered by worker id.
  std::vector<api::admin::ProcessReport> report() const;

  std::uint64_t epoch() const { return epoch_; }
  std::uint64_t revision() const { return revision_; }
  AssignmentVerdict last_verdict() const { return last_verdict_; }
  /// No process runs.
  bool is_idle() const;

 private:
  enum class Phase { kIdle, kStarting, kReady, kStopping };

  struct Slot {
    std::optional<api::admin::ProcessSpec> wanted;
    api::admin::ProcessSpec running;  // what the current or last process was started as
    Phase phase = Phase::kIdle;
    std::uint64_t incarnation = 0;
    std::uint64_t incarnation_floor = 0;
    std::int64_t pid = 0;
    api::admin::ReadyFile ready;
    TimePoint ready_since;
    std::optional<TimePoint> deadline;  // of the start or the stop; then SIGKILL
    TimePoint next_start;
    int failures = 0;             // in a row
    bool was_ever_ready = false;  // with this spec
    std::uint64_t restarts = 0;
    std::string kill_reason;  // why we killed it, when that explains its end
    std::string last_error;
  };

  void apply(const Assigned& event, TimePoint now);
  void apply(const Started& event, TimePoint now);
  void apply(const StartFailed& event, TimePoint now);
  void apply(const BecameReady& event, TimePoint now);
  void apply(const Exited& event, TimePoint now);
  void apply(const TimerDue&, TimePoint) {}
  void apply(const ShutDown&, TimePoint now);
  void apply(const ShutDownNow&, TimePoint now);

  Slot* current(const std::string& worker_id, std::uint64_t incarnation);
  void fail(Slot& slot, std::string reason, TimePoint now);
  bool should_run(const Slot& slot) const;
  bool may_stop(const Slot& slot) const;
  void settle(const std::string& worker_id, Slot& slot, TimePoint now);

  const SupervisionOptions options_;
  std::uint64_t epoch_;
  std::uint64_t revision_ = 0;
  AssignmentVerdict last_verdict_ = AssignmentVerdict::kTaken;
  bool is_shutting_down_ = false;
  bool is_killing_ = false;
  std::uint64_t retired_incarnation_ = 0;  // the highest of the forgotten slots
  std::map<std::string, Slot> slots_;
  std::vector<Command> commands_;  // of the event being applied
};

}  // namespace millrace::agent::core
