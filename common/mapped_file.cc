#include "common/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/str_cat.h"

namespace millrace {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

absl::Status errno_status(const std::string& path) { return absl::ErrnoToStatus(errno, path); }

enum class Durability { kBuffered, kSynced };

absl::Status write_all(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t count = ::write(fd, content.data(), content.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno_status(path);
    content.remove_prefix(static_cast<std::size_t>(count));
  }
  return absl::OkStatus();
}

/// Makes the name of a file in its folder survive a crash.
absl::Status sync_folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.get() < 0 || ::fsync(file.get()) != 0) return errno_status(folder);
  return absl::OkStatus();
}

absl::Status write_temporary(const std::string& path, std::string_view content,
                             Durability durability) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) return errno_status(path);
  if (absl::Status status = write_all(file.get(), content, path); !status.ok()) return status;
  if (durability == Durability::kSynced && ::fsync(file.get()) != 0) return errno_status(path);
  return absl::OkStatus();
}

absl::Status replace_file(const std::string& path, std::string_view content,
                          Durability durability) {
  const std::string temporary = str_cat(path, ".tmp.", ::getpid());
  absl::Status status = write_temporary(temporary, content, durability);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) status = errno_status(path);
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  return durability == Durability::kSynced ? sync_folder_of(path) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::open(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return errno_status(path);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return errno_status(path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(str_cat(path, ": not a regular file"));
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return MappedFile(nullptr, 0);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return errno_status(path);
  return MappedFile(static_cast<const std::uint8_t*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::uint8_t*>(data_), size_);
}

absl::StatusOr<std::string> read_file(const std::string& path, std::size_t max_bytes) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return errno_status(path);
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = ::read(file.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno_status(path);
    if (count == 0) return content;
    content.append(buffer, static_cast<std::size_t>(count));
    if (content.size() > max_bytes) {
      return absl::OutOfRangeError(str_cat(path, ": larger than ", max_bytes, " bytes"));
    }
  }
}

absl::Status write_file_atomically(const std::string& path, std::string_view content) {
  return replace_file(path, content, Durability::kBuffered);
}

absl::Status write_file_durably(const std::string& path, std::string_view content) {
  return replace_file(path, content, Durability::kSynced);
}

}  // namespace millrace
