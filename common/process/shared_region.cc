#include "common/process/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/str_cat.h"

namespace millrace {
namespace {

constexpr char kSharedMemoryFolder[] = "/dev/shm";

/// Names come from peers too: only what we would give ourselves is looked up.
absl::Status check_name(const std::string& name) {
  const bool is_good = name.starts_with("millrace-") && name.size() < 200 &&
                       name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
  if (is_good) return absl::OkStatus();
  return absl::InvalidArgumentError("not a shared-memory name of ours");
}

}  // namespace

absl::StatusOr<SharedRegion> SharedRegion::create(const std::string& name, std::size_t bytes) {
  if (absl::Status status = check_name(name); !status.ok()) return status;
  if (bytes == 0) return absl::InvalidArgumentError("a shared region needs at least one byte");
  const std::string path = str_cat("/", name);
  const int fd = ::shm_open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  SharedRegion region;
  region.owned_name_ = path;
  // Reserves the pages now: without it a full host shows as SIGBUS at the first write.
  if (const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes)); error != 0) {
    ::close(fd);
    return absl::ResourceExhaustedError(
        str_cat("no ", bytes, " bytes of shared memory: ", std::generic_category().message(error)));
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int map_error = errno;
  ::close(fd);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(map_error, path);
  region.data_ = static_cast<std::byte*>(data);
  region.size_ = bytes;
  return region;
}

absl::StatusOr<SharedRegion> SharedRegion::open(const std::string& name, std::size_t bytes) {
  return map_existing(name, bytes, /*is_writable=*/false);
}

absl::StatusOr<SharedRegion> SharedRegion::open_writable(const std::string& name,
                                                         std::size_t bytes) {
  return map_existing(name, bytes, /*is_writable=*/true);
}

absl::StatusOr<SharedRegion> SharedRegion::map_existing(const std::string& name, std::size_t bytes,
                                                        bool is_writable) {
  if (absl::Status status = check_name(name); !status.ok()) return status;
  const std::string path = str_cat("/", name);
  const int fd = ::shm_open(path.c_str(), (is_writable ? O_RDWR : O_RDONLY) | O_CLOEXEC, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  struct stat info {};
  if (::fstat(fd, &info) != 0 || static_cast<std::size_t>(info.st_size) != bytes || bytes == 0) {
    ::close(fd);
    return absl::DataLossError(
        str_cat(path, " holds ", info.st_size, " bytes, announced were ", bytes));
  }
  const int protection = is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  const int map_error = errno;
  ::close(fd);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(map_error, path);
  SharedRegion region;
  region.data_ = static_cast<std::byte*>(data);
  region.size_ = bytes;
  return region;
}

SharedRegion::SharedRegion(SharedRegion&& other) noexcept
    : owned_name_(std::exchange(other.owned_name_, {})),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SharedRegion& SharedRegion::operator=(SharedRegion&& other) noexcept {
  std::swap(owned_name_, other.owned_name_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedRegion::~SharedRegion() {
  if (data_ != nullptr) ::munmap(data_, size_);
  if (!owned_name_.empty()) ::shm_unlink(owned_name_.c_str());
}

int remove_shared_regions(std::string_view prefix) {
  int removed = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it(kSharedMemoryFolder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(prefix) && ::shm_unlink(str_cat("/", name).c_str()) == 0) ++removed;
  }
  return removed;
}

}  // namespace millrace
