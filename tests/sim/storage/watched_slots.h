#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "storage/disk/simulated_disk.h"

namespace millrace::storage::sim {

/// Hears of writes to a slot file.
class SlotWatcher {
 public:
  virtual ~SlotWatcher() = default;
  /// A write was submitted; `reads` of the same slot are in flight.
  virtual void on_write_submitted(std::uint64_t slot, int reads) = 0;
  virtual void on_written(std::uint64_t slot) = 0;
};

/// A simulated slot file that counts which slots are being read.
class WatchedSlots final : public disk::SlotIo {
 public:
  WatchedSlots(disk::SimulatedDisk& disk, const std::string& path, std::uint64_t slot_bytes,
               std::uint64_t slot_count, int queue_depth, std::uint64_t seed, SlotWatcher& watcher)
      : io_(disk, path, slot_bytes * slot_count, queue_depth, seed),
        slot_bytes_(slot_bytes),
        watcher_(watcher) {}

  absl::Status submit(disk::SlotOperation& operation) override {
    const std::uint64_t slot = operation.offset / slot_bytes_;
    const std::uint64_t id = operation.id;
    const disk::IoKind kind = operation.kind;
    const absl::Status status = io_.submit(operation);
    if (!status.ok() || kind == disk::IoKind::kSync) return status;
    slot_of_[id] = slot;
    if (kind == disk::IoKind::kRead) {
      ++reads_[slot];
    } else {
      const auto reads = reads_.find(slot);
      watcher_.on_write_submitted(slot, reads == reads_.end() ? 0 : reads->second);
    }
    return status;
  }
  void flush() override { io_.flush(); }
  std::uint64_t size_bytes() const override { return io_.size_bytes(); }
  const char* kind() const override { return io_.kind(); }

  std::size_t in_flight() const { return io_.in_flight(); }
  disk::SimulatedDisk::FileId file() const { return io_.file(); }

  std::vector<disk::SlotCompletion> run(std::size_t count) {
    std::vector<disk::SlotCompletion> completions = io_.run(count);
    for (const disk::SlotCompletion& completion : completions) {
      if (completion.kind == disk::IoKind::kSync) continue;
      const auto found = slot_of_.find(completion.id);
      const std::uint64_t slot = found->second;
      slot_of_.erase(found);
      if (completion.kind == disk::IoKind::kWrite) {
        watcher_.on_written(slot);
      } else if (--reads_[slot] == 0) {
        reads_.erase(slot);
      }
    }
    return completions;
  }

 private:
  disk::SimulatedSlotIo io_;
  const std::uint64_t slot_bytes_;
  SlotWatcher& watcher_;
  std::map<std::uint64_t, std::uint64_t> slot_of_;  // by id of the operation
  std::map<std::uint64_t, int> reads_;              // by slot
};

}  // namespace millrace::storage::sim
