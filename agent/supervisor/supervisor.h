#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/core/supervision.h"
#include "agent/supervisor/command_line.h"
#include "common/time_point.h"

namespace millrace::agent::supervisor {

struct SupervisorOptions {
  NodeSettings node;
  std::string data_dir;                    ///< gets logs/ and run/
  std::uint64_t max_log_bytes = 16 << 20;  ///< per process, before its log is rotated
};

/// The hands of core::Supervision: starts child processes, signals them, and tells when they are
/// ready and how they ended. Decides nothing.
///
/// Threads: one, except wake(). That thread must live as long as the children: the kernel kills
/// them when it is gone, which is what keeps a killed agent from leaving orphans.
class Supervisor {
 public:
  /// Makes the folders; kPermissionDenied when that fails.
  static absl::StatusOr<std::unique_ptr<Supervisor>> open(SupervisorOptions options);
  /// Kills what still runs.
  ~Supervisor();

  /// Starts a process and returns its pid. Removes first what a dead predecessor left behind: its
  /// ready-file and its shared memory. Errors name the program.
  absl::StatusOr<std::int64_t> start(const api::admin::ProcessSpec& spec,
                                     std::uint64_t incarnation);

  /// Does nothing when that incarnation does not run any more.
  void signal(const core::SignalProcess& command);

  /// Sleeps until something happened (returned, in order of worker id), wake() was called, `fd` is
  /// readable (-1 = none), or the time has come; returns a little earlier when its own upkeep is
  /// due.
  std::vector<core::Event> wait(TimePoint until, int fd = -1);

  /// Ends a wait(); any thread.
  void wake();

 private:
  struct Child;
  struct Impl;
  explicit Supervisor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::agent::supervisor
