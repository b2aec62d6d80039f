#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/disk/slot_io.h"

namespace millrace::storage::disk {

/// A disk in memory for tests, with a power switch. What was not synced when the power goes may be
/// there afterwards, be the old bytes, or be torn: each page of 4 KiB on its own. New, renamed and
/// removed names survive in the order in which they were made, up to a point that is drawn, unless
/// the folder was synced. Any thread; one seed decides all.
class SimulatedDisk {
 public:
  /// What every operation that changes something meets from now on.
  enum class Fault {
    kNone,
    kFull,      ///< kResourceExhausted
    kReadOnly,  ///< kPermissionDenied
    kGone,      ///< kUnavailable, reads too
    kSyncFails  ///< kDataLoss, of syncs alone
  };

  explicit SimulatedDisk(std::uint64_t seed) : random_(seed) {}

  void set_fault(Fault fault);
  /// The power goes at the n-th change (write, sync, rename, ...) from now on: it and all that
  /// follow fail.
  void cut_power_after(std::uint64_t changes);
  bool is_cut() const;
  /// Changes so far.
  std::uint64_t changes() const;
  /// The machine starts again: what was not synced is lost, kept or torn, and the power is back.
  void restart();

  using FileId = std::uint64_t;
  absl::StatusOr<FileId> create(const std::string& path);  ///< empty, whatever was there
  std::optional<FileId> find(const std::string& path) const;
  absl::Status rename(const std::string& from, const std::string& to);
  absl::Status remove(const std::string& path);
  std::vector<std::string> list(const std::string& folder) const;
  absl::Status sync_names();

  absl::Status write(FileId file, std::uint64_t offset, std::span<const std::byte> bytes);
  absl::Status truncate(FileId file, std::uint64_t bytes);
  /// As many bytes as there are.
  absl::StatusOr<std::size_t> read(FileId file, std::uint64_t offset,
                                   std::span<std::byte> bytes) const;
  std::uint64_t size(FileId file) const;
  std::set<std::uint64_t> unsynced_pages(FileId file) const;
  absl::Status sync(FileId file);
  absl::Status sync_pages(FileId file, const std::set<std::uint64_t>& pages);

  /// Changes bytes behind everybody's back, as a rotting medium does.
  void corrupt(FileId file, std::uint64_t offset, std::span<const std::byte> bytes);

 private:
  struct File {
    std::vector<std::byte> now;
    std::vector<std::byte> durable;
    std::set<std::uint64_t> unsynced;
  };
  struct NameChange {
    std::string removed;
    std::string added;
    FileId file = 0;
  };

  absl::Status before_change(bool is_sync = false);
  void apply_lost_pages(File& file);
  static void apply(const NameChange& change, std::map<std::string, FileId>& names);

  mutable std::mutex mutex_;
  std::mt19937_64 random_;
  Fault fault_ = Fault::kNone;
  std::uint64_t changes_ = 0;
  std::optional<std::uint64_t> cut_at_;
  bool is_cut_ = false;
  FileId next_file_ = 1;
  std::map<FileId, File> files_;
  std::map<std::string, FileId> names_;
  std::map<std::string, FileId> durable_names_;
  std::vector<NameChange> unsynced_names_;
};

/// A slot file on a simulated disk. Nothing moves until run() is called: the test is the clock.
class SimulatedSlotIo final : public SlotIo {
 public:
  /// Makes the file, durably, when there is none.
  SimulatedSlotIo(SimulatedDisk& disk, const std::string& path, std::uint64_t bytes,
                  int queue_depth, std::uint64_t seed);

  absl::Status submit(SlotOperation& operation) override;
  void flush() override {}
  std::uint64_t size_bytes() const override { return disk_.size(file_); }
  const char* kind() const override { return "simulated"; }

  std::size_t in_flight() const { return queue_.size(); }
  /// Carries out up to `count` of the operations in flight, in an order that the seed decides.
  std::vector<SlotCompletion> run(std::size_t count);
  SimulatedDisk::FileId file() const { return file_; }

 private:
  struct Queued {
    SlotOperation operation;
    std::set<std::uint64_t> covered;  // a sync: what had been written when it was submitted
  };
  absl::Status execute(Queued& queued);

  SimulatedDisk& disk_;
  const std::size_t queue_depth_;
  std::mt19937_64 random_;
  SimulatedDisk::FileId file_ = 0;
  std::vector<Queued> queue_;
};

}  // namespace millrace::storage::disk
