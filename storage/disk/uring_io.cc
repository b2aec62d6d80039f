#include "storage/disk/uring_io.h"

#include <liburing.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/str_cat.h"

namespace millrace::storage::disk {
namespace {

constexpr std::uint64_t kStop = ~std::uint64_t{0};  // user data of the last entry

constexpr int kMaxRefusals = 100'000;
constexpr auto kRefusalPause = std::chrono::microseconds(200);  // 20 s in all

struct Ring {
  io_uring ring{};
  bool is_open = false;
  ~Ring() {
    if (is_open) io_uring_queue_exit(&ring);
  }
};

/// Submission side: the submitting thread. Completion side: the reaper. The two meet in the table
/// of what is in flight, whose free entries pass between them.
class UringIo final : public SlotIo {
 public:
  UringIo(SlotFile file, std::unique_ptr<Ring> ring, int queue_depth, CompletionSink sink)
      : file_(std::move(file)),
        ring_(std::move(ring)),
        sink_(std::move(sink)),
        table_(static_cast<std::size_t>(queue_depth)) {
    free_.reserve(table_.size());
    for (std::size_t i = 0; i < table_.size(); ++i) free_.push_back(i);
    reaper_ = std::thread([this] { reap(); });
  }

  UringIo(const UringIo&) = delete;
  UringIo& operator=(const UringIo&) = delete;

  ~UringIo() override {
    flush();
    {
      std::unique_lock lock(mutex_);
      all_free_.wait(lock, [&] { return free_.size() == table_.size(); });
    }
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_->ring);
    CHECK(entry != nullptr);
    io_uring_prep_nop(entry);
    io_uring_sqe_set_data64(entry, kStop);
    flush();
    reaper_.join();
  }

  absl::Status submit(SlotOperation& operation) override {
    std::size_t place = 0;
    {
      std::lock_guard lock(mutex_);
      if (free_.empty())
        return absl::ResourceExhaustedError(str_cat(table_.size(), " operations are in flight"));
      place = free_.back();
      free_.pop_back();
    }
    // The ring is larger than the table, and flush() takes all of it: there is an entry.
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_->ring);
    CHECK(entry != nullptr);
    SlotOperation& kept = table_[place];
    kept = std::move(operation);
    prepare(*entry, kept);
    io_uring_sqe_set_data64(entry, place);
    return absl::OkStatus();
  }

  void flush() override {
    int failures = 0;
    while (io_uring_sq_ready(&ring_->ring) > 0) {
      const int submitted = io_uring_submit(&ring_->ring);
      if (submitted >= 0) continue;
      // The kernel is short of memory for the moment. Anything else, or for ever, is not an error
      // that I/O has.
      CHECK(submitted == -EAGAIN || submitted == -EBUSY || submitted == -EINTR);
      CHECK(++failures < kMaxRefusals, "the kernel accepts no I/O");
      std::this_thread::sleep_for(kRefusalPause);
    }
  }

  std::uint64_t size_bytes() const override { return file_.bytes(); }
  const char* kind() const override { return "uring"; }

 private:
  static void prepare(io_uring_sqe& entry, const SlotOperation& operation) {
    const auto bytes = static_cast<unsigned>(operation.buffer.size());
    switch (operation.kind) {
      case IoKind::kRead:
        io_uring_prep_read(&entry, 0, operation.buffer.data(), bytes, operation.offset);
        break;
      case IoKind::kWrite:
        io_uring_prep_write(&entry, 0, operation.buffer.data(), bytes, operation.offset);
        break;
      case IoKind::kSync:
        io_uring_prep_fsync(&entry, 0, IORING_FSYNC_DATASYNC);
        break;
    }
    entry.flags = static_cast<__u8>(entry.flags | IOSQE_FIXED_FILE);  // descriptor 0 of the ring
  }

  void reap() {
    bool is_stopping = false;
    while (!is_stopping) {
      io_uring_cqe* entry = nullptr;
      const int waited = io_uring_wait_cqe(&ring_->ring, &entry);
      if (waited == -EINTR || waited == -EAGAIN) continue;
      CHECK(waited == 0, "the ring itself failed");
      std::vector<SlotCompletion> completions;
      std::vector<std::size_t> freed;
      unsigned head = 0;
      unsigned count = 0;
      io_uring_for_each_cqe(&ring_->ring, head, entry) {
        ++count;
        const std::uint64_t place = io_uring_cqe_get_data64(entry);
        if (place == kStop) {
          is_stopping = true;
        } else {
          completions.push_back(complete(static_cast<std::size_t>(place), entry->res));
          freed.push_back(static_cast<std::size_t>(place));
        }
      }
      io_uring_cq_advance(&ring_->ring, count);
      give_back(freed);
      if (!completions.empty()) sink_(std::move(completions));
    }
  }

  void give_back(const std::vector<std::size_t>& freed) {
    std::lock_guard lock(mutex_);
    free_.insert(free_.end(), freed.begin(), freed.end());
    if (free_.size() == table_.size()) all_free_.notify_all();
  }

  SlotCompletion complete(std::size_t place, int result) {
    std::lock_guard lock(mutex_);  // pairs with submit(): what it wrote is seen here
    SlotOperation& operation = table_[place];
    SlotCompletion completion;
    completion.id = operation.id;
    completion.kind = operation.kind;
    completion.status = result < 0
                            ? status_of_errno(-result, "io_uring")
                            : status_of_count(operation.kind, static_cast<std::uint64_t>(result),
                                              operation.buffer.size());
    completion.buffer = std::move(operation.buffer);
    return completion;
  }

  const SlotFile file_;
  const std::unique_ptr<Ring> ring_;
  const CompletionSink sink_;
  std::mutex mutex_;
  std::condition_variable all_free_;
  std::vector<SlotOperation> table_;  // an entry belongs to whoever took its place from free_
  std::vector<std::size_t> free_;     // guarded by mutex_
  std::thread reaper_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SlotIo>> open_uring_io(SlotFile& file, int queue_depth,
                                                      CompletionSink sink) {
  auto ring = std::make_unique<Ring>();
  const int made = io_uring_queue_init(static_cast<unsigned>(queue_depth) + 1, &ring->ring, 0);
  if (made < 0)
    return absl::UnavailableError(
        str_cat("the kernel refuses io_uring: ", message_of(status_of_errno(-made, "setup"))));
  ring->is_open = true;
  const int fd = file.fd();
  const int registered = io_uring_register_files(&ring->ring, &fd, 1);
  if (registered < 0)
    return absl::UnavailableError(str_cat("the kernel refuses io_uring: ",
                                          message_of(status_of_errno(-registered, "register"))));
  return std::make_unique<UringIo>(std::move(file), std::move(ring), queue_depth, std::move(sink));
}

}  // namespace millrace::storage::disk
