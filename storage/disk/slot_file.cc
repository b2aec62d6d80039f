#include "storage/disk/slot_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>

#include "common/annotate.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/disk/plain_io.h"
#include "storage/disk/uring_io.h"
#include "storage/disk/usrbio_io.h"

namespace millrace::storage::disk {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::size_t kFillBytes = std::size_t{1} << 20;

/// Closes a descriptor unless it was taken.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

/// How long a lock of somebody else is taken for the rest of a process that was killed: its rings
/// hold its files for some milliseconds longer than it lives.
constexpr std::chrono::milliseconds kLockPatience{1000};

absl::Status lock(int fd, const std::string& path) {
  const auto deadline = std::chrono::steady_clock::now() + kLockPatience;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return status_of_errno(errno, str_cat(path, ": flock"));
    if (std::chrono::steady_clock::now() >= deadline)
      return absl::FailedPreconditionError(str_cat(path, ": another process has it"));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return absl::OkStatus();
}

/// Zeros by hand, where the file system knows no fallocate.
absl::Status fill_with_zeros(int fd, std::uint64_t bytes, const std::string& path) {
  const std::vector<std::byte> zeros(kFillBytes);
  for (std::uint64_t at = 0; at < bytes;) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(kFillBytes, bytes - at));
    const ssize_t done = ::pwrite(fd, zeros.data(), count, static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return status_of_errno(errno, str_cat(path, ": preallocate"));
    if (done == 0) return status_of_errno(ENOSPC, str_cat(path, ": preallocate"));
    at += static_cast<std::uint64_t>(done);
  }
  return absl::OkStatus();
}

absl::Status preallocate(int fd, std::uint64_t bytes, const std::string& path) {
  if (::ftruncate(fd, 0) != 0) return status_of_errno(errno, str_cat(path, ": ftruncate"));
  if (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) return absl::OkStatus();
  if (errno != EOPNOTSUPP && errno != ENOSYS)
    return status_of_errno(errno, str_cat(path, ": fallocate of ", bytes, " bytes"));
  return fill_with_zeros(fd, bytes, path);
}

absl::Status sync_folder_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? std::string(".") : parent.string();
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0)
    return status_of_errno(errno, str_cat(folder, ": fsync"));
  return absl::OkStatus();
}

/// Gives the finished file its name, which must be free.
absl::Status rename_into_place(const std::string& making, const std::string& path) {
  if (::renameat2(AT_FDCWD, making.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) == 0)
    return absl::OkStatus();
  if (errno == EEXIST)
    return absl::FailedPreconditionError(str_cat(path, ": another process is making it"));
  // Some network file systems know no NOREPLACE; the lock on the unfinished file has to do there.
  if (errno == EINVAL && ::rename(making.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return status_of_errno(errno, str_cat(path, ": rename"));
}

absl::Status make_file(const std::string& path, std::uint64_t bytes) {
  if (bytes == 0 || bytes % kPage != 0)
    return absl::InvalidArgumentError(
        str_cat(path, ": ", bytes, " bytes is not a whole number of pages of ", kPage));
  const std::string making = str_cat(path, ".making");
  const Descriptor fd(::open(making.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640));
  if (fd.get() < 0) return status_of_errno(errno, str_cat(making, ": open"));
  RETURN_IF_ERROR(lock(fd.get(), making));
  absl::Status status = preallocate(fd.get(), bytes, making);
  if (status.ok() && ::fsync(fd.get()) != 0)
    status = status_of_errno(errno, str_cat(making, ": fsync"));
  if (status.ok()) status = rename_into_place(making, path);
  if (!status.ok()) {
    ::unlink(making.c_str());
    return status;
  }
  return sync_folder_of(path);
}

bool reads_directly(int fd) {
  PageBuffer page(kPage);
  return ::pread(fd, page.data(), page.size(), 0) >= 0;
}

absl::StatusOr<SlotFile> open_existing(const std::string& path) {
  bool is_direct = true;
  int raw = ::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  if (raw >= 0 && !reads_directly(raw)) {
    ::close(raw);
    raw = -1;
    errno = EINVAL;
  }
  if (raw < 0 && errno == EINVAL) {
    is_direct = false;
    raw = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  }
  if (raw < 0) return status_of_errno(errno, str_cat(path, ": open"));
  Descriptor fd(raw);
  RETURN_IF_ERROR(lock(fd.get(), path));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return status_of_errno(errno, str_cat(path, ": fstat"));
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(str_cat(path, ": not a regular file"));
  const std::uint64_t bytes = static_cast<std::uint64_t>(info.st_size) / kPage * kPage;
  return SlotFile(fd.release(), bytes, is_direct);
}

}  // namespace

SlotFile::~SlotFile() {
  if (fd_ < 0) return;
  // Said, not left to close(): a ring that was just closed may hold the file for some milliseconds.
  ::flock(fd_, LOCK_UN);
  ::close(fd_);
}

absl::StatusOr<SlotFile> open_or_make(const std::string& path, std::uint64_t bytes) {
  absl::StatusOr<SlotFile> file = open_existing(path);
  if (file.ok() || file.status().code() != absl::StatusCode::kNotFound) return file;
  RETURN_IF_ERROR(make_file(path, bytes));
  return open_existing(path);
}

absl::Status status_of_errno(int error_number, std::string_view what) {
  const std::string message = str_cat(what, ": ", std::string_view(std::strerror(error_number)));
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case EROFS:
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ENOENT:
      return absl::NotFoundError(message);
    case ENXIO:
    case ENODEV:
    case ENOTCONN:
    case ESHUTDOWN:
    case ECONNABORTED:
    case EREMOTEIO:
    case ESTALE:
      return absl::UnavailableError(message);
    case EIO:
    case EILSEQ:
    case EBADMSG:
    case ENODATA:
      return absl::DataLossError(message);
    case EINVAL:
      return absl::InvalidArgumentError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status status_of_count(IoKind kind, std::uint64_t done, std::uint64_t expected) {
  if (kind == IoKind::kSync || done == expected) return absl::OkStatus();
  const std::string message = str_cat("short count: ", done, " of ", expected, " bytes");
  return kind == IoKind::kRead ? absl::DataLossError(message)
                               : absl::ResourceExhaustedError(message);
}

absl::StatusOr<std::unique_ptr<SlotIo>> open_slot_file(const SlotFileOptions& options,
                                                       CompletionSink sink) {
  if (options.queue_depth < 1 || options.queue_depth > kMaxQueueDepth)
    return absl::InvalidArgumentError(
        str_cat("queue depth ", options.queue_depth, " is not from 1 to ", kMaxQueueDepth));
  if (options.backend == IoBackend::kUsrbio) return open_usrbio_io(options, std::move(sink));
  ASSIGN_OR_RETURN(SlotFile file, open_or_make(options.path, options.bytes));
  if (options.backend == IoBackend::kUring && !file.is_direct())
    return absl::UnavailableError(str_cat(options.path, ": the file system refuses O_DIRECT"));
  if (options.backend != IoBackend::kPlain && file.is_direct()) {
    auto opened = open_uring_io(file, options.queue_depth, sink);
    if (opened.ok() || options.backend == IoBackend::kUring) return opened;
  }
  return open_plain_io(std::move(file), options.queue_depth, std::move(sink));
}

}  // namespace millrace::storage::disk
