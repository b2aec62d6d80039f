#include "agent/server/node_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/mapped_file.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::agent::server {
namespace {

absl::StatusOr<std::uint64_t> read_epoch(const std::string& path) {
  const absl::StatusOr<std::string> text = read_file(path, 64);
  if (absl::IsNotFound(text.status())) return 0;
  if (!text.ok()) return text.status();
  std::uint64_t epoch = 0;
  const char* end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, epoch);
  if (error == std::errc() && rest == end) return epoch;
  return absl::DataLossError(
      str_cat(path, " should hold one number; remove it to let this node obey any controller"));
}

}  // namespace

absl::StatusOr<NodeLock> NodeLock::take(const std::string& data_dir) {
  std::error_code error;
  std::filesystem::create_directories(data_dir, error);
  if (error) {
    return absl::PermissionDeniedError(
        str_cat("cannot create the folder ", data_dir, ": ", error.message()));
  }
  const std::string path = data_dir + "/agent.lock";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  NodeLock lock(fd, data_dir + "/epoch", 0);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(str_cat("another agent is running on ", data_dir,
                                                 "; stop it first, or choose another --data-dir"));
  }
  ASSIGN_OR_RETURN(lock.epoch_, read_epoch(lock.epoch_path_));
  return lock;
}

NodeLock::NodeLock(NodeLock&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      epoch_path_(std::move(other.epoch_path_)),
      epoch_(other.epoch_) {}

NodeLock::~NodeLock() {
  if (fd_ >= 0) close(fd_);
}

absl::Status NodeLock::store_epoch(std::uint64_t epoch) {
  RETURN_IF_ERROR(write_file_atomically(epoch_path_, str_cat(epoch)));
  epoch_ = epoch;
  return absl::OkStatus();
}

}  // namespace millrace::agent::server
