#pragma once

#include <memory>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "storage/disk/simulated_disk.h"
#include "storage/index/shard_index.h"

namespace millrace::storage::sim {

enum class CommitEnd {
  kDone,
  kFailed  ///< it may have reached the medium, or not
};

/// Hears of each change of an index just before it is made.
class IndexWatcher {
 public:
  virtual ~IndexWatcher() = default;
  virtual void on_index_change(const BlockKey& key, const std::optional<index::ShardRecord>& before,
                               const std::optional<index::ShardRecord>& after, CommitEnd end) = 0;
};

/// A target's metadata on a simulated disk: a commit is a change of that disk, so that the power
/// may go at it, and what was not synced may then be lost, from the end.
class SimulatedIndex final : public index::ShardIndex {
 public:
  SimulatedIndex(const index::TargetIdentity& identity, disk::SimulatedDisk& disk,
                 IndexWatcher& watcher, std::uint64_t seed);

  /// Another process opens it. After a power cut the changes since the last synced commit are there
  /// up to a point that is drawn.
  void reopen(bool after_power_cut);

  absl::StatusOr<std::optional<index::ShardRecord>> find(const BlockKey& key) override {
    return now_->find(key);
  }
  absl::StatusOr<std::vector<std::optional<index::ShardRecord>>> find_many(
      std::span<const BlockKey> keys) override {
    return now_->find_many(keys);
  }
  absl::Status commit(std::span<const index::IndexChange> changes,
                      index::Durability durability) override;
  absl::StatusOr<std::vector<index::ShardEntry>> list(const std::optional<BlockKey>& after,
                                                      std::size_t limit) override {
    return now_->list(after, limit);
  }
  absl::StatusOr<std::vector<index::ShardEntry>> oldest(
      const std::optional<index::ShardEntry>& after, std::size_t limit) override {
    return now_->oldest(after, limit);
  }
  absl::Status for_each(
      const std::function<absl::Status(const index::ShardEntry&)>& visit) override {
    return now_->for_each(visit);
  }
  const index::TargetIdentity& identity() const override { return now_->identity(); }
  std::uint32_t stored_minute() const override { return now_->stored_minute(); }
  absl::Status store_minute(std::uint32_t minute) override;
  std::optional<index::StoredPlace> stored_place() const override { return now_->stored_place(); }
  absl::Status store_place(const index::StoredPlace& place) override;

 private:
  using Batch = std::vector<index::IndexChange>;
  void tell(const Batch& batch, CommitEnd end);
  void restore_from_durable();

  disk::SimulatedDisk& disk_;
  IndexWatcher& watcher_;
  std::mt19937_64 random_;
  std::unique_ptr<index::ShardIndex> now_;
  std::unique_ptr<index::ShardIndex> durable_;
  std::vector<Batch> unsynced_;
  bool has_failed_ = false;
};

}  // namespace millrace::storage::sim
