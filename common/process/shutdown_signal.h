#pragma once

#include <chrono>

#include "absl/status/statusor.h"

namespace millrace {

/// Turns SIGTERM and SIGINT into a value that main waits for. The first asks to drain, the second
/// to stop at once. Ignores SIGPIPE, so that a peer that hangs up is an error code and no death.
///
/// At most one per process at a time (signal dispositions belong to the process); main installs it
/// before it starts threads. All functions may be called from any thread.
class ShutdownSignal {
 public:
  static absl::StatusOr<ShutdownSignal> install();

  ShutdownSignal(ShutdownSignal&& other) noexcept;
  ShutdownSignal& operator=(ShutdownSignal&&) = delete;
  /// Restores the previous dispositions.
  ~ShutdownSignal();

  /// How many of these signals have come. 0: run. 1: drain. More: stop at once.
  int count() const;

  /// Waits until more than `seen` signals have come; returns count().
  int wait_beyond(int seen) const;
  /// The same, for at most `timeout`.
  int wait_beyond_for(int seen, std::chrono::milliseconds timeout) const;

  /// Becomes and stays readable at the first signal, for poll(). Not to be read from.
  int fd() const;

 private:
  ShutdownSignal() = default;
  bool is_installed_ = false;
};

}  // namespace millrace
