#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace::storage::disk {

/// Memory for direct I/O: page-aligned, a whole number of pages, move-only.
class PageBuffer {
 public:
  PageBuffer() = default;
  /// `bytes` rounded up to whole pages; contents undefined.
  explicit PageBuffer(std::size_t bytes);
  PageBuffer(PageBuffer&& other) noexcept;
  PageBuffer& operator=(PageBuffer&& other) noexcept;
  ~PageBuffer();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() { return {data_, size_}; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

enum class IoKind { kRead, kWrite, kSync };

/// One operation on a slot file. The buffer belongs to the operation until its completion, whatever
/// the asker has decided meanwhile: hardware and daemons write into it late.
struct SlotOperation {
  std::uint64_t id = 0;  ///< comes back in the completion
  IoKind kind = IoKind::kRead;
  std::uint64_t offset = 0;  ///< multiple of a page
  PageBuffer buffer;         ///< read into, or written from; whole. Empty for kSync
};

struct SlotCompletion {
  std::uint64_t id = 0;
  IoKind kind = IoKind::kRead;
  /// OK only for all bytes of the buffer: a short count is kDataLoss (a read) or kResourceExhausted
  /// (a write). kUnavailable: the medium is gone.
  absl::Status status;
  PageBuffer buffer;
};

/// Called from threads of the I/O, perhaps several at a time; takes many at once. It must not call
/// the SlotIo, and must not block.
using CompletionSink = std::function<void(std::vector<SlotCompletion>)>;

/// One preallocated file of slots. Thread-safe for one submitting thread. Everything submitted is
/// completed exactly once; destruction waits for what is in flight.
///
/// A kSync covers the writes that had completed when it was submitted.
///
/// After a failed kSync nothing written since the last good one may be believed, and it is not
/// retried: the kernel may have dropped the pages.
class SlotIo {
 public:
  virtual ~SlotIo() = default;

  /// kResourceExhausted when `queue_depth` operations are in flight: the operation is untouched.
  virtual absl::Status submit(SlotOperation& operation) = 0;
  /// Hands what was submitted to the kernel or daemon at the latest now.
  virtual void flush() = 0;

  virtual std::uint64_t size_bytes() const = 0;
  /// "uring", "plain", "plain_page_cache" (no O_DIRECT there), "usrbio": for people and metrics.
  virtual const char* kind() const = 0;
};

enum class IoBackend {
  kAuto,    ///< O_DIRECT and io_uring where the kernel allows both, else kPlain; see kind()
  kUring,   ///< both: kUnavailable when the kernel or the file system refuses
  kPlain,   ///< pread and pwrite on threads, through the page cache where O_DIRECT is refused
  kUsrbio,  ///< 3FS: kUnavailable when its library or mount is not there
};

inline constexpr int kMaxQueueDepth = 4096;

struct SlotFileOptions {
  std::string path;
  std::uint64_t bytes = 0;  ///< preallocated when the file is made; an existing one keeps its size
  IoBackend backend = IoBackend::kAuto;
  int queue_depth = 128;

  // Of kUsrbio alone.
  std::string usrbio_library = "libhf3fs_api_shared.so";
  /// Longest single read or write; a slot.
  std::size_t max_operation_bytes = std::size_t{1} << 20;
  /// An operation that has not ended for so long will not: longer than the minute for which the
  /// daemon itself goes on trying a dead target.
  std::chrono::milliseconds dead_after{90'000};
};

/// Opens a slot file, making and preallocating it when there is none. kResourceExhausted: no room
/// for it (nothing is left behind); kPermissionDenied: read-only; kFailedPrecondition: another
/// process has it; the message names the file.
absl::StatusOr<std::unique_ptr<SlotIo>> open_slot_file(const SlotFileOptions& options,
                                                       CompletionSink sink);

}  // namespace millrace::storage::disk
