#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

/// What to run.
struct ChildSpec {
  std::string program;                        ///< path of the executable; PATH is not searched
  std::vector<std::string> arguments = {};    ///< without the program's own name
  std::vector<std::string> environment = {};  ///< "NAME=value", added to ours or replacing it
  std::string output_path = {};  ///< standard output and error are appended here; empty: inherited
};

/// How a child ended.
struct ExitStatus {
  int code = 0;    ///< exit code, when signal is 0
  int signal = 0;  ///< signal that killed it, else 0

  bool is_success() const { return code == 0 && signal == 0; }
};

/// "exit code 1" or "signal 9 (Killed)".
std::string describe(const ExitStatus& status);

/// One child process, owned: the destructor kills its process group and reaps it. Move-only; one
/// thread at a time.
///
/// The child leads its own process group, so that a Ctrl-C on the parent's terminal is not also
/// sent to it: the parent decides when to drain whom. Standard input is /dev/null; all other
/// descriptors close.
///
/// The child is killed (SIGKILL) by the kernel when the parent is gone, even by SIGKILL: a
/// supervisor that starts again finds no orphan on its ports. The kernel watches the *thread* that
/// called start(), so that thread must live as long as the child should.
class ChildProcess {
 public:
  /// kNotFound or kPermissionDenied (program or output path, named), kResourceExhausted (no more
  /// processes). Returns once the program runs: a failed exec is an error here.
  static absl::StatusOr<ChildProcess> start(const ChildSpec& spec);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }

  /// A descriptor that becomes readable when the child has ended, for poll(). Owned by the child.
  int exit_fd() const { return exit_fd_; }

  /// How it ended; nullopt while it runs. Does not wait.
  std::optional<ExitStatus> poll();

  /// Waits at most that long for the end.
  std::optional<ExitStatus> wait_for(std::chrono::milliseconds timeout);

  /// Sends a signal to the child alone. Sending to an ended child does nothing.
  void send(int signal);

  /// SIGTERM, then SIGKILL to its whole group when it has not ended after `grace`.
  ExitStatus stop(std::chrono::milliseconds grace);

 private:
  ChildProcess(pid_t pid, int exit_fd) : pid_(pid), exit_fd_(exit_fd) {}
  void kill_and_reap();

  pid_t pid_ = -1;
  int exit_fd_ = -1;
  std::optional<ExitStatus> ended_;
};

}  // namespace millrace
