#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "common/status_macros.h"
#include "storage/index/shard_index.h"

namespace millrace::storage::index {
namespace {

/// Order of eviction; see ShardIndex::oldest.
struct Age {
  std::uint32_t touch_minute;
  std::uint32_t inverse_depth;
  BlockKey key;
  bool operator<(const Age& other) const {
    return std::tie(touch_minute, inverse_depth, key) <
           std::tie(other.touch_minute, other.inverse_depth, other.key);
  }
};

Age age_of(const ShardEntry& entry) {
  return {entry.record.touch_minute, ~entry.record.depth, entry.key};
}

class MemoryIndex final : public ShardIndex {
 public:
  explicit MemoryIndex(TargetIdentity identity) : identity_(std::move(identity)) {}

  absl::StatusOr<std::optional<ShardRecord>> find(const BlockKey& key) override {
    const auto found = shards_.find(key);
    if (found == shards_.end()) return std::optional<ShardRecord>();
    return std::optional<ShardRecord>(found->second);
  }

  absl::StatusOr<std::vector<std::optional<ShardRecord>>> find_many(
      std::span<const BlockKey> keys) override {
    std::vector<std::optional<ShardRecord>> records;
    records.reserve(keys.size());
    for (const BlockKey& key : keys) {
      ASSIGN_OR_RETURN(std::optional<ShardRecord> record, find(key));
      records.push_back(record);
    }
    return records;
  }

  absl::Status commit(std::span<const IndexChange> changes, Durability) override {
    for (const IndexChange& change : changes) {
      if (const auto* put = std::get_if<PutShard>(&change)) {
        erase(put->entry.key);
        shards_.insert_or_assign(put->entry.key, put->entry.record);
        if (put->entry.record.state == ShardState::kPublished) ages_.insert(age_of(put->entry));
      } else {
        erase(std::get<EraseShard>(change).key);
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<ShardEntry>> list(const std::optional<BlockKey>& after,
                                               std::size_t limit) override {
    std::vector<ShardEntry> entries;
    for (auto at = after ? shards_.upper_bound(*after) : shards_.begin();
         at != shards_.end() && entries.size() < limit; ++at)
      entries.push_back({at->first, at->second});
    return entries;
  }

  absl::StatusOr<std::vector<ShardEntry>> oldest(const std::optional<ShardEntry>& after,
                                                 std::size_t limit) override {
    std::vector<ShardEntry> entries;
    for (auto at = after ? ages_.upper_bound(age_of(*after)) : ages_.begin();
         at != ages_.end() && entries.size() < limit; ++at)
      entries.push_back({at->key, shards_.at(at->key)});
    return entries;
  }

  absl::Status for_each(const std::function<absl::Status(const ShardEntry&)>& visit) override {
    for (const auto& [key, record] : shards_) RETURN_IF_ERROR(visit({key, record}));
    return absl::OkStatus();
  }

  const TargetIdentity& identity() const override { return identity_; }
  std::uint32_t stored_minute() const override { return minute_; }
  absl::Status store_minute(std::uint32_t minute) override {
    minute_ = std::max(minute_, minute);
    return absl::OkStatus();
  }
  std::optional<StoredPlace> stored_place() const override { return place_; }
  absl::Status store_place(const StoredPlace& place) override {
    place_ = place;
    return absl::OkStatus();
  }

 private:
  void erase(const BlockKey& key) {
    const auto found = shards_.find(key);
    if (found == shards_.end()) return;
    ages_.erase(age_of({key, found->second}));
    shards_.erase(found);
  }

  const TargetIdentity identity_;
  std::map<BlockKey, ShardRecord> shards_;
  std::set<Age> ages_;  // published ones
  std::uint32_t minute_ = 0;
  std::optional<StoredPlace> place_;
};

}  // namespace

std::unique_ptr<ShardIndex> make_memory_index(const TargetIdentity& identity) {
  return std::make_unique<MemoryIndex>(identity);
}

}  // namespace millrace::storage::index
