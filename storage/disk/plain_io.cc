#include "storage/disk/plain_io.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/mailbox.h"
#include "common/str_cat.h"

namespace millrace::storage::disk {
namespace {

/// Enough to keep a disk busy that sorts requests itself; more would only queue in the kernel.
constexpr int kMaxThreads = 8;

class PlainIo final : public SlotIo {
 public:
  PlainIo(SlotFile file, int queue_depth, CompletionSink sink)
      : file_(std::move(file)),
        queue_depth_(queue_depth),
        sink_(std::move(sink)),
        queue_(static_cast<std::size_t>(queue_depth)) {
    const int thread_count = std::min(queue_depth, kMaxThreads);
    threads_.reserve(static_cast<std::size_t>(thread_count));
    for (int i = 0; i < thread_count; ++i) threads_.emplace_back([this] { work(); });
  }

  PlainIo(const PlainIo&) = delete;
  PlainIo& operator=(const PlainIo&) = delete;

  ~PlainIo() override {
    queue_.close();  // what is queued is still done
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status submit(SlotOperation& operation) override {
    if (in_flight_.load() >= queue_depth_)
      return absl::ResourceExhaustedError(str_cat(queue_depth_, " operations are in flight"));
    in_flight_.fetch_add(1);
    CHECK(queue_.try_push(std::move(operation)), "the queue holds all that may be in flight");
    return absl::OkStatus();
  }

  void flush() override {}
  std::uint64_t size_bytes() const override { return file_.bytes(); }
  const char* kind() const override { return file_.is_direct() ? "plain" : "plain_page_cache"; }

 private:
  void work() {
    while (std::optional<SlotOperation> operation = queue_.pop()) {
      std::vector<SlotCompletion> completions(1);
      SlotCompletion& completion = completions.front();
      completion.id = operation->id;
      completion.kind = operation->kind;
      completion.status = execute(*operation);
      completion.buffer = std::move(operation->buffer);
      in_flight_.fetch_sub(1);
      sink_(std::move(completions));
    }
  }

  absl::Status execute(const SlotOperation& operation) const {
    if (operation.kind == IoKind::kSync) {
      if (::fdatasync(file_.fd()) == 0) return absl::OkStatus();
      return status_of_errno(errno, "fdatasync");
    }
    const std::size_t size = operation.buffer.size();
    std::size_t done = 0;
    while (done < size) {
      std::byte* const at = operation.buffer.data() + done;
      const auto offset = static_cast<off_t>(operation.offset + done);
      const ssize_t count = operation.kind == IoKind::kRead
                                ? ::pread(file_.fd(), at, size - done, offset)
                                : ::pwrite(file_.fd(), at, size - done, offset);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0)
        return status_of_errno(errno, operation.kind == IoKind::kRead ? "pread" : "pwrite");
      if (count == 0) break;
      done += static_cast<std::size_t>(count);
    }
    return status_of_count(operation.kind, done, size);
  }

  const SlotFile file_;
  const int queue_depth_;
  const CompletionSink sink_;
  std::atomic<int> in_flight_ = 0;
  Mailbox<SlotOperation> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<SlotIo> open_plain_io(SlotFile file, int queue_depth, CompletionSink sink) {
  return std::make_unique<PlainIo>(std::move(file), queue_depth, std::move(sink));
}

}  // namespace millrace::storage::disk
