#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/disk/slot_io.h"

namespace millrace::storage::disk {

/// An open slot file, locked against other processes. Move-only; closing it releases the lock.
class SlotFile {
 public:
  SlotFile(int fd, std::uint64_t bytes, bool is_direct)
      : fd_(fd), bytes_(bytes), is_direct_(is_direct) {}
  SlotFile(SlotFile&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_), is_direct_(other.is_direct_) {}
  SlotFile& operator=(SlotFile&&) = delete;
  ~SlotFile();

  int fd() const { return fd_; }
  std::uint64_t bytes() const { return bytes_; }
  /// O_DIRECT is on: the page cache is left alone.
  bool is_direct() const { return is_direct_; }

 private:
  int fd_;
  std::uint64_t bytes_;
  bool is_direct_;
};

/// Opens and locks the file; makes and preallocates it when there is none. A file of this name is
/// always whole: it is made under another name, filled, synced, and then renamed. Errors as
/// open_slot_file() says.
absl::StatusOr<SlotFile> open_or_make(const std::string& path, std::uint64_t bytes);

/// The status of a failed system call, by what a caller can do about it. kResourceExhausted: no
/// room; kPermissionDenied: read-only; kUnavailable: the medium is gone; kDataLoss: these bytes
/// cannot be read or written; kInternal: the rest. `what` names file and call.
absl::Status status_of_errno(int error_number, std::string_view what);

/// The status of an operation that moved `done` of `expected` bytes.
absl::Status status_of_count(IoKind kind, std::uint64_t done, std::uint64_t expected);

}  // namespace millrace::storage::disk
