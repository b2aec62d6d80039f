#include "storage/index/simulated_file_system.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "common/str_cat.h"

namespace millrace::storage::index {
namespace {

using disk::SimulatedDisk;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

IOStatus to_io_status(const absl::Status& status) {
  if (status.ok()) return IOStatus::OK();
  const std::string message(message_of(status));
  if (status.code() == absl::StatusCode::kResourceExhausted) return IOStatus::NoSpace(message);
  if (status.code() == absl::StatusCode::kNotFound) return IOStatus::PathNotFound(message);
  return IOStatus::IOError(message);
}

std::span<const std::byte> bytes_of(const Slice& slice) {
  return {reinterpret_cast<const std::byte*>(slice.data()), slice.size()};
}

/// RocksDB doubles slashes here and there.
std::string clean(const std::string& path) {
  std::string made;
  made.reserve(path.size());
  for (const char c : path) {
    if (c != '/' || made.empty() || made.back() != '/') made.push_back(c);
  }
  if (made.size() > 1 && made.back() == '/') made.pop_back();
  return made;
}

IOStatus read_at(const SimulatedDisk& disk, SimulatedDisk::FileId file, std::uint64_t offset,
                 std::size_t n, Slice* result, char* scratch) {
  const auto count = disk.read(file, offset, {reinterpret_cast<std::byte*>(scratch), n});
  if (!count.ok()) return to_io_status(count.status());
  *result = Slice(scratch, *count);
  return IOStatus::OK();
}

class SequentialFile final : public rocksdb::FSSequentialFile {
 public:
  SequentialFile(SimulatedDisk& disk, SimulatedDisk::FileId file) : disk_(disk), file_(file) {}
  IOStatus Read(std::size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) override {
    IOStatus status = read_at(disk_, file_, offset_, n, result, scratch);
    if (status.ok()) offset_ += result->size();
    return status;
  }
  IOStatus Skip(std::uint64_t n) override {
    offset_ += n;
    return IOStatus::OK();
  }

 private:
  SimulatedDisk& disk_;
  const SimulatedDisk::FileId file_;
  std::uint64_t offset_ = 0;
};

class RandomAccessFile final : public rocksdb::FSRandomAccessFile {
 public:
  RandomAccessFile(SimulatedDisk& disk, SimulatedDisk::FileId file) : disk_(disk), file_(file) {}
  IOStatus Read(std::uint64_t offset, std::size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) const override {
    return read_at(disk_, file_, offset, n, result, scratch);
  }

 private:
  SimulatedDisk& disk_;
  const SimulatedDisk::FileId file_;
};

class WritableFile final : public rocksdb::FSWritableFile {
 public:
  WritableFile(SimulatedDisk& disk, SimulatedDisk::FileId file)
      : disk_(disk), file_(file), size_(disk.size(file)) {}
  using FSWritableFile::Append;
  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    const absl::Status status = disk_.write(file_, size_, bytes_of(data));
    if (status.ok()) size_ += data.size();
    return to_io_status(status);
  }
  IOStatus Truncate(std::uint64_t size, const IOOptions&, IODebugContext*) override {
    if (size == size_) return IOStatus::OK();
    size_ = size;
    return to_io_status(disk_.truncate(file_, size));
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    return to_io_status(disk_.sync(file_));
  }
  std::uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return size_; }

 private:
  SimulatedDisk& disk_;
  const SimulatedDisk::FileId file_;
  std::uint64_t size_;
};

class Directory final : public rocksdb::FSDirectory {
 public:
  explicit Directory(SimulatedDisk& disk) : disk_(disk) {}
  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    return to_io_status(disk_.sync_names());
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

 private:
  SimulatedDisk& disk_;
};

/// RocksDB's own log of what it does: nothing that a crash test asks for.
class SilentLogger final : public rocksdb::Logger {
 public:
  using Logger::Logv;
  void Logv(const char*, va_list) override {}
  std::size_t GetLogFileSize() const override { return 0; }
};

class FileLock final : public rocksdb::FileLock {};

class SimulatedFileSystem final : public rocksdb::FileSystem {
 public:
  explicit SimulatedFileSystem(SimulatedDisk& disk) : disk_(disk) {}

  const char* Name() const override { return "simulated"; }

  IOStatus NewSequentialFile(const std::string& name, const rocksdb::FileOptions&,
                             std::unique_ptr<rocksdb::FSSequentialFile>* result,
                             IODebugContext*) override {
    const auto file = disk_.find(clean(name));
    if (!file) return IOStatus::PathNotFound(name);
    *result = std::make_unique<SequentialFile>(disk_, *file);
    return IOStatus::OK();
  }
  IOStatus NewRandomAccessFile(const std::string& name, const rocksdb::FileOptions&,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                               IODebugContext*) override {
    const auto file = disk_.find(clean(name));
    if (!file) return IOStatus::PathNotFound(name);
    *result = std::make_unique<RandomAccessFile>(disk_, *file);
    return IOStatus::OK();
  }
  IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions&,
                           std::unique_ptr<rocksdb::FSWritableFile>* result,
                           IODebugContext*) override {
    const auto file = disk_.create(clean(name));
    if (!file.ok()) return to_io_status(file.status());
    *result = std::make_unique<WritableFile>(disk_, *file);
    return IOStatus::OK();
  }
  IOStatus ReopenWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                              std::unique_ptr<rocksdb::FSWritableFile>* result,
                              IODebugContext* context) override {
    const auto file = disk_.find(clean(name));
    if (!file) return NewWritableFile(name, options, result, context);
    *result = std::make_unique<WritableFile>(disk_, *file);
    return IOStatus::OK();
  }
  IOStatus NewDirectory(const std::string&, const IOOptions&,
                        std::unique_ptr<rocksdb::FSDirectory>* result, IODebugContext*) override {
    *result = std::make_unique<Directory>(disk_);
    return IOStatus::OK();
  }

  IOStatus FileExists(const std::string& name, const IOOptions&, IODebugContext*) override {
    const std::string path = clean(name);
    if (disk_.find(path) || !disk_.list(path).empty()) return IOStatus::OK();
    return IOStatus::NotFound(name);
  }
  IOStatus GetChildren(const std::string& folder, const IOOptions&,
                       std::vector<std::string>* result, IODebugContext*) override {
    *result = disk_.list(clean(folder));
    return IOStatus::OK();
  }
  IOStatus DeleteFile(const std::string& name, const IOOptions&, IODebugContext*) override {
    return to_io_status(disk_.remove(clean(name)));
  }
  IOStatus CreateDir(const std::string&, const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }
  IOStatus CreateDirIfMissing(const std::string&, const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }
  IOStatus DeleteDir(const std::string&, const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }
  IOStatus GetFileSize(const std::string& name, const IOOptions&, std::uint64_t* size,
                       IODebugContext*) override {
    const auto file = disk_.find(clean(name));
    if (!file) return IOStatus::PathNotFound(name);
    *size = disk_.size(*file);
    return IOStatus::OK();
  }
  IOStatus GetFileModificationTime(const std::string&, const IOOptions&, std::uint64_t* time,
                                   IODebugContext*) override {
    *time = 0;
    return IOStatus::OK();
  }
  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions&,
                      IODebugContext*) override {
    return to_io_status(disk_.rename(clean(from), clean(to)));
  }
  IOStatus LockFile(const std::string& name, const IOOptions&, rocksdb::FileLock** lock,
                    IODebugContext*) override {
    (void)name;  // one process, one opener at a time: the tests see to it
    *lock = new FileLock();
    return IOStatus::OK();
  }
  IOStatus UnlockFile(rocksdb::FileLock* lock, const IOOptions&, IODebugContext*) override {
    delete lock;
    return IOStatus::OK();
  }
  IOStatus GetTestDirectory(const IOOptions&, std::string* path, IODebugContext*) override {
    *path = "/test";
    return IOStatus::OK();
  }
  IOStatus NewLogger(const std::string&, const IOOptions&, std::shared_ptr<rocksdb::Logger>* result,
                     IODebugContext*) override {
    *result = std::make_shared<SilentLogger>();
    return IOStatus::OK();
  }
  IOStatus GetAbsolutePath(const std::string& path, const IOOptions&, std::string* result,
                           IODebugContext*) override {
    *result = path;
    return IOStatus::OK();
  }
  IOStatus IsDirectory(const std::string& path, const IOOptions&, bool* is_directory,
                       IODebugContext*) override {
    *is_directory = !disk_.find(clean(path));
    return IOStatus::OK();
  }

 private:
  SimulatedDisk& disk_;
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> make_simulated_file_system(disk::SimulatedDisk& disk) {
  return std::make_shared<SimulatedFileSystem>(disk);
}

}  // namespace millrace::storage::index
