#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/process/shutdown_signal.h"
#include "deploy/cli/cluster_record.h"
#include "deploy/cli/commands.h"
#include "deploy/cli/up_reporter.h"

namespace millrace::deploy::cli {

/// A cluster on this machine: a controller and an agent as children of this process, and whatever
/// the agent starts for them. All of it ends when this process ends, however that happens.
/// One thread: the one that started it must live as long (see common/process/child_process.h).
class LocalCluster {
 public:
  /// Starts everything and waits until a request would be answered, or until options.wait_s is over
  /// (kDeadlineExceeded), a process does not start (kUnavailable with its last error) or `signal`
  /// arrives (kCancelled). Nothing is left running after an error.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> start(const UpOptions& options,
                                                             const ShutdownSignal& signal,
                                                             UpReporter& reporter);
  /// Stops everything at once; stop() is the gentle way.
  ~LocalCluster();

  const ClusterRecord& record() const;

  /// Restarts a controller or agent that dies, until a signal arrives (OK) or one of them keeps
  /// dying (kUnavailable).
  absl::Status run(const ShutdownSignal& signal);

  /// Lets the agent drain and stop its processes, then stops the controller. A second signal makes
  /// it hurry.
  void stop(const ShutdownSignal& signal);

 private:
  struct Impl;
  explicit LocalCluster(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::deploy::cli
