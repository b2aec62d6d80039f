#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace millrace::storage::disk::usrbio {

/// Our own declarations of the part of 3FS's USRBIO that we call (libhf3fs_api_shared.so, as of
/// 2026-03). The library is loaded at run time; nothing of it is needed to build.

/// A shared memory region that holds all data.
struct Region {
  std::uint8_t* base;
  void* handle;
  char id[16];
  char mount_point[256];
  std::size_t size;
  std::size_t block_size;
  int numa;
};

/// A ring, for reads or for writes.
struct Ring {
  Region region;
  void* handle;
  char mount_point[256];
  bool for_read;
  int io_depth;
  int priority;
  int timeout;
  std::uint64_t flags;
};

struct Completion {
  std::int32_t index;
  std::int32_t reserved;
  std::int64_t result;  ///< bytes, or -errno
  const void* user_data;
};

/// Flag of a ring: what was never written is an error, not zeros.
inline constexpr std::uint64_t kForbidReadHoles = 2;

/// The functions, by what they are for. Their names in the library: hf3fs_ and the comment.
struct Api {
  /// extract_mount_point: length + 1; <= 0: not on 3FS.
  int (*extract_mount_point)(char* mount_point, int size, const char* path);
  /// iovcreate: 0 or -errno. block_size 0: one registration for all of it.
  int (*create_region)(Region* region, const char* mount_point, std::size_t size,
                       std::size_t block_size, int numa);
  /// iovdestroy
  void (*destroy_region)(Region* region);
  /// iorcreate4: 0 or -errno. io_depth 0: whatever is prepared is carried out; a positive depth
  /// would leave a short batch waiting for ever.
  int (*create_ring)(Ring* ring, const char* mount_point, int entries, bool for_read, int io_depth,
                     int timeout, int numa, std::uint64_t flags);
  /// iordestroy
  void (*destroy_ring)(Ring* ring);
  /// reg_fd: <= 0 when it is registered, else errno.
  int (*register_file)(int fd, std::uint64_t flags);
  /// dereg_fd
  void (*deregister_file)(int fd);
  /// prep_io: >= 0 or -errno; one thread per ring.
  int (*prepare)(const Ring* ring, const Region* region, bool is_read, void* at, int fd,
                 std::size_t offset, std::uint64_t bytes, const void* user_data);
  /// submit_ios: 0 or -errno.
  int (*submit)(const Ring* ring);
  /// wait_for_ios: how many came, perhaps fewer than `least` when the time is over; or -errno. The
  /// deadline is absolute, of CLOCK_REALTIME.
  int (*wait)(const Ring* ring, Completion* completions, int capacity, int least,
              const std::timespec* deadline);
};

/// Loads a library for the rest of the process's life. kUnavailable names what is missing.
absl::StatusOr<Api> load_api(const std::string& library);

}  // namespace millrace::storage::disk::usrbio
