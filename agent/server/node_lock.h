#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace::agent::server {

/// An agent's folder, held by one agent at a time, with the highest epoch it ever obeyed.
/// Move-only; the hold ends with the process, also with a killed one.
class NodeLock {
 public:
  /// Creates the folder when it is missing. kFailedPrecondition when another agent holds it,
  /// kDataLoss when the stored epoch is no number.
  static absl::StatusOr<NodeLock> take(const std::string& data_dir);

  NodeLock(NodeLock&& other) noexcept;
  NodeLock& operator=(NodeLock&&) = delete;
  ~NodeLock();

  std::uint64_t epoch() const { return epoch_; }
  /// Writes a new epoch before anything is done in its name.
  absl::Status store_epoch(std::uint64_t epoch);

 private:
  NodeLock(int fd, std::string epoch_path, std::uint64_t epoch)
      : fd_(fd), epoch_path_(std::move(epoch_path)), epoch_(epoch) {}

  int fd_;
  std::string epoch_path_;
  std::uint64_t epoch_;
};

}  // namespace millrace::agent::server
