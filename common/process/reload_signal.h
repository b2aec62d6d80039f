#pragma once

#include "absl/status/statusor.h"

namespace millrace {

/// Turns SIGHUP, by which people ask a process to read its files again, into a value that main
/// waits for. At most one per process at a time, as with ShutdownSignal.
class ReloadSignal {
 public:
  static absl::StatusOr<ReloadSignal> install();

  ReloadSignal(ReloadSignal&& other) noexcept;
  ReloadSignal& operator=(ReloadSignal&&) = delete;
  /// Restores the previous disposition.
  ~ReloadSignal();

  /// Whether the signal has come since the last call: many at a time count as one. Any thread.
  bool take() const;

  /// Readable while take() would say true, for poll(). Not to be read from.
  int fd() const;

 private:
  ReloadSignal() = default;
  bool is_installed_ = false;
};

}  // namespace millrace
