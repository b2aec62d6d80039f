#include "tests/sim/storage/simulated_index.h"

#include <map>
#include <utility>

#include "common/check.h"
#include "common/status_macros.h"

namespace millrace::storage::sim {

using index::Durability;
using index::IndexChange;

SimulatedIndex::SimulatedIndex(const index::TargetIdentity& identity, disk::SimulatedDisk& disk,
                               IndexWatcher& watcher, std::uint64_t seed)
    : disk_(disk),
      watcher_(watcher),
      random_(seed),
      now_(index::make_memory_index(identity)),
      durable_(index::make_memory_index(identity)) {}

absl::Status SimulatedIndex::commit(std::span<const IndexChange> changes, Durability durability) {
  if (has_failed_) return absl::FailedPreconditionError("a commit has failed before");
  Batch batch(changes.begin(), changes.end());
  // Any change of the disk will do: it fails as the disk does, and the power may go at it.
  absl::Status written = disk_.sync_names();
  tell(batch, written.ok() ? CommitEnd::kDone : CommitEnd::kFailed);
  if (!written.ok()) {
    has_failed_ = true;
    unsynced_.push_back(std::move(batch));
    return written;
  }
  RETURN_IF_ERROR(now_->commit(batch, durability));
  unsynced_.push_back(std::move(batch));
  if (durability != Durability::kSynced) return absl::OkStatus();
  for (const Batch& each : std::exchange(unsynced_, {}))
    RETURN_IF_ERROR(durable_->commit(each, Durability::kSynced));
  return absl::OkStatus();
}

absl::Status SimulatedIndex::store_minute(std::uint32_t minute) {
  RETURN_IF_ERROR(disk_.sync_names());
  RETURN_IF_ERROR(durable_->store_minute(minute));
  return now_->store_minute(minute);
}

absl::Status SimulatedIndex::store_place(const index::StoredPlace& place) {
  if (has_failed_) return absl::FailedPreconditionError("a commit has failed before");
  absl::Status written = disk_.sync_names();
  has_failed_ = !written.ok();
  if (written.ok()) {
    RETURN_IF_ERROR(now_->store_place(place));
  } else if (random_() % 2 == 0) {
    return written;
  }
  for (const Batch& each : std::exchange(unsynced_, {}))
    RETURN_IF_ERROR(durable_->commit(each, Durability::kSynced));
  RETURN_IF_ERROR(durable_->store_place(place));
  return written;
}

void SimulatedIndex::reopen(bool after_power_cut) {
  // A process that dies leaves what it wrote to the kernel.
  const std::size_t kept =
      after_power_cut || has_failed_ ? random_() % (unsynced_.size() + 1) : unsynced_.size();
  for (std::size_t i = 0; i < kept; ++i)
    CHECK(durable_->commit(unsynced_[i], Durability::kSynced).ok());
  unsynced_.clear();
  has_failed_ = false;
  restore_from_durable();
}

void SimulatedIndex::tell(const Batch& batch, CommitEnd end) {
  // A batch may change a key more than once.
  std::map<BlockKey, std::optional<index::ShardRecord>> changed;
  for (const IndexChange& change : batch) {
    const auto* put = std::get_if<index::PutShard>(&change);
    const BlockKey& key = put != nullptr ? put->entry.key : std::get<index::EraseShard>(change).key;
    const auto earlier = changed.find(key);
    const std::optional<index::ShardRecord> before =
        earlier != changed.end() ? earlier->second : *now_->find(key);
    const std::optional<index::ShardRecord> after =
        put != nullptr ? std::optional(put->entry.record) : std::nullopt;
    changed[key] = after;
    watcher_.on_index_change(key, before, after, end);
  }
}

void SimulatedIndex::restore_from_durable() {
  std::unique_ptr<index::ShardIndex> restored = index::make_memory_index(identity());
  CHECK(restored->store_minute(durable_->stored_minute()).ok());
  if (const auto place = durable_->stored_place()) CHECK(restored->store_place(*place).ok());
  CHECK(durable_
            ->for_each([&](const index::ShardEntry& entry) {
              const IndexChange change = index::PutShard{entry};
              return restored->commit({&change, 1}, Durability::kSynced);
            })
            .ok());
  now_ = std::move(restored);
}

}  // namespace millrace::storage::sim
