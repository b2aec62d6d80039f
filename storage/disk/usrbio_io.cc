#include "storage/disk/usrbio_io.h"

#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/disk/usrbio_api.h"

namespace millrace::storage::disk {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kReapInterval = std::chrono::milliseconds(100);
constexpr auto kProbeInterval = std::chrono::milliseconds(500);
constexpr int kReapAtOnce = 64;
constexpr int kAnyNuma = -1;

/// 3FS waits by the wall clock. Should that jump back, a wait lasts until the next completion,
/// which harms nothing: whether the daemon lives is judged by the steady clock, elsewhere.
std::timespec wall_clock_in(std::chrono::nanoseconds time) {
  std::timespec at{};
  ::clock_gettime(CLOCK_REALTIME, &at);
  const std::int64_t nanoseconds = at.tv_nsec + time.count();
  at.tv_sec += nanoseconds / 1'000'000'000;
  at.tv_nsec = nanoseconds % 1'000'000'000;
  return at;
}

/// What 3FS lends us; given back unless its daemon is dead.
struct Lent {
  usrbio::Api api{};
  usrbio::Region region{};
  usrbio::Ring reads{};
  usrbio::Ring writes{};
  int registered_fd = -1;
  bool has_region = false;
  bool has_reads = false;
  bool has_writes = false;
  bool is_lost = false;

  Lent() = default;
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() {
    // Always: the number would stay taken, and the next file that gets it be refused.
    if (registered_fd >= 0) api.deregister_file(registered_fd);
    if (is_lost) return;
    if (has_reads) api.destroy_ring(&reads);
    if (has_writes) api.destroy_ring(&writes);
    if (has_region) api.destroy_region(&region);
  }
};

/// Threads: the submitter prepares; one reaper per ring; one thread syncs and, between, asks the
/// mount whether it lives; one watches the time. They meet in the table of what is in flight.
class UsrbioIo final : public SlotIo {
 public:
  UsrbioIo(SlotFile file, std::unique_ptr<Lent> lent, const SlotFileOptions& options,
           std::string mount_point, CompletionSink sink)
      : file_(std::move(file)),
        lent_(std::move(lent)),
        piece_bytes_(options.max_operation_bytes),
        dead_after_(options.dead_after),
        mount_point_(std::move(mount_point)),
        sink_(std::move(sink)),
        table_(static_cast<std::size_t>(options.queue_depth)) {
    free_.reserve(table_.size());
    for (std::size_t i = 0; i < table_.size(); ++i) free_.push_back(i);
    threads_.emplace_back([this] { reap(lent_->reads); });
    threads_.emplace_back([this] { reap(lent_->writes); });
    threads_.emplace_back([this] { sync_and_probe(); });
    threads_.emplace_back([this] { watch(); });
  }

  UsrbioIo(const UsrbioIo&) = delete;
  UsrbioIo& operator=(const UsrbioIo&) = delete;

  ~UsrbioIo() override {
    flush();
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return in_flight_ == 0; });
      is_stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    lent_->is_lost = is_dead_;
  }

  absl::Status submit(SlotOperation& operation) override {
    if (operation.buffer.size() > piece_bytes_)
      return absl::InvalidArgumentError(
          str_cat(operation.buffer.size(), " bytes at a time; at most ", piece_bytes_));
    std::lock_guard lock(mutex_);
    if (in_flight_ >= table_.size())
      return absl::ResourceExhaustedError(str_cat(table_.size(), " operations are in flight"));
    ++in_flight_;
    if (is_dead_) {
      doomed_.push_back(std::move(operation));
      changed_.notify_all();
      return absl::OkStatus();
    }
    const std::size_t place = free_.back();
    free_.pop_back();
    table_[place] = Entry{std::move(operation), Clock::now(), true};
    if (table_[place].operation.kind == IoKind::kSync) {
      syncs_.push_back(place);
      changed_.notify_all();
    } else {
      prepare(place);
    }
    return absl::OkStatus();
  }

  void flush() override {
    if (std::exchange(has_reads_, false)) lent_->api.submit(&lent_->reads);
    if (std::exchange(has_writes_, false)) lent_->api.submit(&lent_->writes);
  }

  std::uint64_t size_bytes() const override { return file_.bytes(); }
  const char* kind() const override { return "usrbio"; }

 private:
  struct Entry {
    SlotOperation operation;
    Clock::time_point since;
    bool is_used = false;
  };

  std::uint8_t* piece(std::size_t place) const { return lent_->region.base + place * piece_bytes_; }

  /// Under mutex_, on the submitter's thread: what comes back must find the entry as it is.
  void prepare(std::size_t place) {
    const SlotOperation& operation = table_[place].operation;
    const bool is_read = operation.kind == IoKind::kRead;
    const std::size_t bytes = operation.buffer.size();
    if (!is_read) std::memcpy(piece(place), operation.buffer.data(), bytes);
    (is_read ? has_reads_ : has_writes_) = true;
    // Rings are as long as the table, and an entry is free again only after it was reaped.
    const int prepared =
        lent_->api.prepare(is_read ? &lent_->reads : &lent_->writes, &lent_->region, is_read,
                           piece(place), file_.fd(), operation.offset, bytes, &table_[place]);
    if (prepared >= 0) return;
    refused_.emplace_back(place, -prepared);
    changed_.notify_all();
  }

  void reap(const usrbio::Ring& ring) {
    std::array<usrbio::Completion, kReapAtOnce> reaped{};
    while (!is_over()) {
      const std::timespec deadline = wall_clock_in(kReapInterval);
      const int count = lent_->api.wait(&ring, reaped.data(), kReapAtOnce, 1, &deadline);
      if (count < 0 && count != -EAGAIN && count != -EINTR && count != -ETIMEDOUT)
        die(str_cat("waiting for I/O: ", std::string_view(std::strerror(-count))));
      std::vector<SlotCompletion> completions;
      for (int i = 0; i < count; ++i) {
        const auto* const entry =
            static_cast<const Entry*>(reaped[static_cast<std::size_t>(i)].user_data);
        const auto place = static_cast<std::size_t>(entry - table_.data());
        take(place, reaped[static_cast<std::size_t>(i)].result, completions);
      }
      hand_over(std::move(completions));
    }
  }

  /// The end of an entry by a count or -errno. After the daemon was given up nothing counts.
  void take(std::size_t place, std::int64_t result, std::vector<SlotCompletion>& completions) {
    std::lock_guard lock(mutex_);
    if (is_dead_) return;
    Entry& entry = table_[place];
    CHECK(entry.is_used, "what was begun ends once");
    SlotOperation& operation = entry.operation;
    absl::Status status = result < 0
                              ? status_of_errno(static_cast<int>(-result), "usrbio")
                              : status_of_count(operation.kind, static_cast<std::uint64_t>(result),
                                                operation.buffer.size());
    if (status.ok() && operation.kind == IoKind::kRead)
      std::memcpy(operation.buffer.data(), piece(place), operation.buffer.size());
    completions.push_back(end(place, std::move(status)));
    free_.push_back(place);
  }

  /// Under mutex_. The place is not free by that: its memory may still be 3FS's.
  SlotCompletion end(std::size_t place, absl::Status status) {
    Entry& entry = table_[place];
    SlotCompletion completion;
    completion.id = entry.operation.id;
    completion.kind = entry.operation.kind;
    completion.status = std::move(status);
    completion.buffer = std::move(entry.operation.buffer);
    entry.is_used = false;
    return completion;
  }

  void hand_over(std::vector<SlotCompletion> completions) {
    if (completions.empty()) return;
    const std::size_t count = completions.size();
    sink_(std::move(completions));
    std::lock_guard lock(mutex_);
    in_flight_ -= count;
    changed_.notify_all();
  }

  void sync_and_probe() {
    while (true) {
      std::optional<std::size_t> place;
      std::vector<std::pair<std::size_t, int>> refused;
      std::vector<SlotCompletion> completions;
      bool is_dead = false;
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, kProbeInterval, [&] {
          return is_stopping_ || !syncs_.empty() || !refused_.empty() || !doomed_.empty();
        });
        if (is_stopping_) return;
        is_dead = is_dead_;
        refused = std::exchange(refused_, {});
        completions = end_doomed();
        if (!syncs_.empty()) {
          place = syncs_.front();
          syncs_.pop_front();
        }
      }
      for (const auto& [refused_place, error] : refused) take(refused_place, -error, completions);
      hand_over(std::move(completions));
      if (place) {
        sync(*place);
      } else if (!is_dead) {
        probe();
      }
    }
  }

  /// Under mutex_.
  std::vector<SlotCompletion> end_doomed() {
    std::vector<SlotCompletion> completions;
    for (SlotOperation& operation : std::exchange(doomed_, {})) {
      SlotCompletion completion;
      completion.id = operation.id;
      completion.kind = operation.kind;
      completion.status = absl::UnavailableError(death_);
      completion.buffer = std::move(operation.buffer);
      completions.push_back(std::move(completion));
    }
    return completions;
  }

  void sync(std::size_t place) {
    const int error = ::fsync(file_.fd()) == 0 ? 0 : errno;
    std::vector<SlotCompletion> completions;
    take(place, -error, completions);
    hand_over(std::move(completions));
  }

  /// A mount whose daemon is gone says so at once.
  void probe() {
    struct statfs info {};
    if (::statfs(mount_point_.c_str(), &info) == 0) return;
    if (errno == ENOTCONN || errno == ESHUTDOWN || errno == ECONNABORTED)
      die(str_cat(mount_point_, ": ", std::string_view(std::strerror(errno))));
  }

  void watch() {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, kReapInterval, [&] { return is_stopping_; });
        if (is_stopping_) return;
        if (is_dead_) continue;
        const auto now = Clock::now();
        const bool is_stuck = std::any_of(table_.begin(), table_.end(), [&](const Entry& entry) {
          return entry.is_used && now - entry.since > dead_after_;
        });
        if (!is_stuck) continue;
      }
      die(str_cat(mount_point_, ": nothing ended for ", dead_after_.count(), " ms"));
    }
  }

  /// Ends everything. No place becomes free: what is in flight may still be written to.
  void die(const std::string& reason) {
    std::vector<SlotCompletion> completions;
    {
      std::lock_guard lock(mutex_);
      if (is_dead_) return;
      is_dead_ = true;
      death_ = str_cat("the 3FS daemon is given up: ", reason);
      for (std::size_t place = 0; place < table_.size(); ++place) {
        if (table_[place].is_used)
          completions.push_back(end(place, absl::UnavailableError(death_)));
      }
      syncs_.clear();
      refused_.clear();
      changed_.notify_all();
    }
    hand_over(std::move(completions));
  }

  bool is_over() {
    std::lock_guard lock(mutex_);
    return is_stopping_ || is_dead_;
  }

  const SlotFile file_;
  const std::unique_ptr<Lent> lent_;
  const std::size_t piece_bytes_;
  const std::chrono::milliseconds dead_after_;
  const std::string mount_point_;
  const CompletionSink sink_;
  bool has_reads_ = false;   // submitter's thread
  bool has_writes_ = false;  // submitter's thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> table_;           // guarded by mutex_
  std::vector<std::size_t> free_;      // guarded by mutex_
  std::size_t in_flight_ = 0;          // guarded by mutex_
  std::deque<std::size_t> syncs_;      // guarded by mutex_
  std::vector<SlotOperation> doomed_;  // guarded by mutex_; come after the daemon's end
  std::vector<std::pair<std::size_t, int>> refused_;  // guarded by mutex_; place and errno
  bool is_dead_ = false;                              // guarded by mutex_
  bool is_stopping_ = false;                          // guarded by mutex_
  std::string death_;                                 // guarded by mutex_
  std::vector<std::thread> threads_;
};

absl::Status failed(std::string_view what, int error) {
  return absl::UnavailableError(
      str_cat("USRBIO: ", what, ": ", std::string_view(std::strerror(error))));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SlotIo>> open_usrbio_io(const SlotFileOptions& options,
                                                       CompletionSink sink) {
  auto lent = std::make_unique<Lent>();
  ASSIGN_OR_RETURN(lent->api, usrbio::load_api(options.usrbio_library));
  std::array<char, 256> mount_point{};
  const int length = lent->api.extract_mount_point(
      mount_point.data(), static_cast<int>(mount_point.size()), options.path.c_str());
  if (length <= 0 || length > static_cast<int>(mount_point.size()))
    return absl::UnavailableError(str_cat(options.path, ": not on a 3FS mount"));
  const std::string mount(mount_point.data());
  ASSIGN_OR_RETURN(SlotFile file, open_or_make(options.path, options.bytes));

  const usrbio::Api& api = lent->api;
  const std::size_t bytes =
      static_cast<std::size_t>(options.queue_depth) * options.max_operation_bytes;
  if (const int made = api.create_region(&lent->region, mount.c_str(), bytes, 0, kAnyNuma);
      made != 0)
    return failed("shared memory", -made);
  lent->has_region = true;
  if (const int made = api.create_ring(&lent->reads, mount.c_str(), options.queue_depth, true, 0, 0,
                                       kAnyNuma, usrbio::kForbidReadHoles);
      made != 0)
    return failed("ring of reads", -made);
  lent->has_reads = true;
  if (const int made = api.create_ring(&lent->writes, mount.c_str(), options.queue_depth, false, 0,
                                       0, kAnyNuma, 0);
      made != 0)
    return failed("ring of writes", -made);
  lent->has_writes = true;
  if (const int error = api.register_file(file.fd(), 0); error > 0)
    return failed("registering the lane", error);
  lent->registered_fd = file.fd();
  return std::make_unique<UsrbioIo>(std::move(file), std::move(lent), options, mount,
                                    std::move(sink));
}

}  // namespace millrace::storage::disk
