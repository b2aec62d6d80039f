#include "storage/disk/usrbio_double.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "storage/disk/usrbio_api.h"

namespace {

using millrace::storage::disk::usrbio::Completion;
using millrace::storage::disk::usrbio::kForbidReadHoles;
using millrace::storage::disk::usrbio::Region;
using millrace::storage::disk::usrbio::Ring;

std::atomic<bool> is_frozen = false;

struct Prepared {
  bool is_read;
  std::uint8_t* at;
  int fd;
  std::size_t offset;
  std::size_t bytes;
  const void* user_data;
  int index;
};

struct FileTable {
  std::mutex mutex;
  std::set<int> registered;
};
FileTable& files() {
  static FileTable table;
  return table;
}

bool has_hole(const Prepared& io) {
  const auto end = static_cast<off_t>(io.offset + io.bytes);
  const off_t hole = ::lseek(io.fd, static_cast<off_t>(io.offset), SEEK_HOLE);
  return hole >= 0 && hole < end;
}

/// The daemon's side of one ring, on a thread of its own.
class Daemon {
 public:
  Daemon(int entries, bool for_read, int io_depth, std::uint64_t flags)
      : entries_(entries), for_read_(for_read), io_depth_(io_depth), flags_(flags) {
    thread_ = std::thread([this] { run(); });
  }
  ~Daemon() {
    {
      std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  int prepare(Prepared io) {
    std::lock_guard lock(mutex_);
    if (preparer_ == std::thread::id()) preparer_ = std::this_thread::get_id();
    if (preparer_ != std::this_thread::get_id()) std::abort();
    if (io.is_read != for_read_ || io.bytes == 0) return -EINVAL;
    if (taken_ >= entries_) return -EAGAIN;
    io.index = taken_++;
    prepared_.push_back(io);
    changed_.notify_all();  // it may begin before it is submitted
    return io.index;
  }

  int wait(Completion* completions, int capacity, int least, const std::timespec* deadline) {
    const auto until =
        std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::microseconds>(
            std::chrono::seconds(deadline->tv_sec) + std::chrono::nanoseconds(deadline->tv_nsec)));
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, until, [&] { return static_cast<int>(completed_.size()) >= least; });
    int count = 0;
    while (count < capacity && !completed_.empty()) {
      completions[count++] = completed_.front();
      completed_.pop_front();
      --taken_;
    }
    return count;
  }

 private:
  void run() {
    std::mt19937 random(1);
    while (true) {
      std::vector<Prepared> batch;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] {
          return is_stopping_ ||
                 prepared_.size() >= static_cast<std::size_t>(std::max(io_depth_, 1));
        });
        if (is_stopping_) return;
        const std::size_t count =
            io_depth_ > 0 ? static_cast<std::size_t>(io_depth_) : prepared_.size();
        batch.assign(prepared_.begin(), prepared_.begin() + static_cast<std::ptrdiff_t>(count));
        prepared_.erase(prepared_.begin(), prepared_.begin() + static_cast<std::ptrdiff_t>(count));
      }
      std::shuffle(batch.begin(), batch.end(), random);
      for (const Prepared& io : batch) {
        if (io.is_read) std::memset(io.at, 0xee, io.bytes);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
      while (is_frozen && !is_stopping_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      for (const Prepared& io : batch) carry_out(io);
    }
  }

  void carry_out(const Prepared& io) {
    Completion completion{};
    completion.index = io.index;
    completion.user_data = io.user_data;
    if (io.is_read && (flags_ & kForbidReadHoles) != 0 && has_hole(io)) {
      completion.result = -ENODATA;
    } else {
      // The lane may be open for direct I/O; the daemon's own memory is aligned.
      void* aligned = std::aligned_alloc(4096, (io.bytes + 4095) / 4096 * 4096);
      if (!io.is_read) std::memcpy(aligned, io.at, io.bytes);
      const ssize_t done = io.is_read
                               ? ::pread(io.fd, aligned, io.bytes, static_cast<off_t>(io.offset))
                               : ::pwrite(io.fd, aligned, io.bytes, static_cast<off_t>(io.offset));
      completion.result = done < 0 ? -errno : done;
      if (io.is_read && done > 0) std::memcpy(io.at, aligned, static_cast<std::size_t>(done));
      std::free(aligned);
    }
    std::lock_guard lock(mutex_);
    completed_.push_back(completion);
    changed_.notify_all();
  }

  const int entries_;
  const bool for_read_;
  const int io_depth_;
  const std::uint64_t flags_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Prepared> prepared_;
  std::deque<Completion> completed_;
  int taken_ = 0;
  std::thread::id preparer_;
  std::atomic<bool> is_stopping_ = false;
  std::thread thread_;
};

}  // namespace

extern "C" {

void usrbio_double_freeze(int freeze) { is_frozen = freeze != 0; }

int hf3fs_extract_mount_point(char* mount_point, int size, const char* path) {
  const std::string text(path);
  const std::size_t found = text.find(kUsrbioDoubleMount);
  if (found == std::string::npos) return -1;
  const std::string mount = text.substr(0, text.find('/', found));
  const int length = static_cast<int>(mount.size()) + 1;
  if (length <= size) std::memcpy(mount_point, mount.c_str(), mount.size() + 1);
  return length;
}

int hf3fs_iovcreate(Region* region, const char*, std::size_t size, std::size_t block_size,
                    int numa) {
  void* const memory =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return -errno;
  region->base = static_cast<std::uint8_t*>(memory);
  region->size = size;
  region->block_size = block_size;
  region->numa = numa;
  return 0;
}

void hf3fs_iovdestroy(Region* region) { ::munmap(region->base, region->size); }

int hf3fs_iorcreate4(Ring* ring, const char*, int entries, bool for_read, int io_depth, int timeout,
                     int, std::uint64_t flags) {
  ring->for_read = for_read;
  ring->io_depth = io_depth;
  ring->timeout = timeout;
  ring->flags = flags;
  ring->handle = new Daemon(entries, for_read, io_depth, flags);
  return 0;
}

void hf3fs_iordestroy(Ring* ring) { delete static_cast<Daemon*>(ring->handle); }

int hf3fs_reg_fd(int fd, std::uint64_t) {
  std::lock_guard lock(files().mutex);
  if (!files().registered.insert(fd).second) return EINVAL;
  return -fd;
}

void hf3fs_dereg_fd(int fd) {
  std::lock_guard lock(files().mutex);
  files().registered.erase(fd);
}

int hf3fs_prep_io(const Ring* ring, const Region* region, bool read, void* ptr, int fd,
                  std::size_t off, std::uint64_t len, const void* userdata) {
  auto* const at = static_cast<std::uint8_t*>(ptr);
  if (at < region->base || at + len > region->base + region->size) return -EINVAL;
  {
    std::lock_guard lock(files().mutex);
    if (files().registered.count(fd) == 0) return -EBADF;
  }
  return static_cast<Daemon*>(ring->handle)->prepare({read, at, fd, off, len, userdata, 0});
}

int hf3fs_submit_ios(const Ring*) { return 0; }

int hf3fs_wait_for_ios(const Ring* ring, Completion* cqes, int cqec, int min_results,
                       const std::timespec* abs_timeout) {
  return static_cast<Daemon*>(ring->handle)->wait(cqes, cqec, min_results, abs_timeout);
}

}  // extern "C"
