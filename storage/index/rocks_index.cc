#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/index/record_codec.h"
#include "storage/index/shard_index.h"

namespace millrace::storage::index {
namespace {

constexpr char kIdentityKey[] = "identity";
constexpr char kMinuteKey[] = "minute";
constexpr char kPlaceKey[] = "place";
constexpr int kBloomBitsPerKey = 10;

rocksdb::Slice slice(std::string_view text) { return {text.data(), text.size()}; }
std::string_view view(const rocksdb::Slice& text) { return {text.data(), text.size()}; }

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// RocksDB knows classes of errors that say little about what to do; its text often says more.
absl::Status to_status(const rocksdb::Status& status, std::string_view what) {
  if (status.ok()) return absl::OkStatus();
  const std::string text = status.ToString();
  const std::string message = str_cat(what, ": ", text);
  if (status.IsCorruption()) return absl::DataLossError(message);
  if (status.IsNoSpace() || has(text, "No space left"))
    return absl::ResourceExhaustedError(message);
  if (has(text, "Permission denied") || has(text, "Read-only file system"))
    return absl::PermissionDeniedError(message);
  if (status.IsIOError() && (has(text, "lock ") || has(text, "While lock")))
    return absl::FailedPreconditionError(message);
  if (status.IsIOError()) return absl::UnavailableError(message);
  return absl::InternalError(message);
}

absl::Status damaged(const std::string& path, std::string_view what) {
  return absl::DataLossError(str_cat(path, ": ", what));
}

rocksdb::Options database_options(const RocksIndexOptions& options, rocksdb::Env* env) {
  rocksdb::Options made;
  made.env = env;
  made.create_if_missing = true;
  made.create_missing_column_families = true;
  made.paranoid_checks = true;
  made.max_open_files = 512;
  made.max_background_jobs = 2;
  made.max_total_wal_size = 4 * options.write_buffer_bytes;
  // After an error of the medium nothing is retried behind our back: commit() reports it for good.
  made.max_bgerror_resume_count = 0;
  made.keep_log_file_num = 2;
  made.max_log_file_size = std::size_t{1} << 20;
  made.stats_dump_period_sec = 0;
  return made;
}

rocksdb::ColumnFamilyOptions family_options(const RocksIndexOptions& options,
                                            const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(kBloomBitsPerKey, false));
  // Filters and indexes live in the cache, so that memory is bounded, and in small parts: a whole
  // one grows with its file, and one that is larger than a shard of the cache would be read from
  // the file again for every key.
  table.cache_index_and_filter_blocks = true;
  table.cache_index_and_filter_blocks_with_high_priority = true;
  table.pin_top_level_index_and_filter = true;
  table.index_type = rocksdb::BlockBasedTableOptions::kTwoLevelIndexSearch;
  table.partition_filters = true;
  table.format_version = 5;
  rocksdb::ColumnFamilyOptions made;
  made.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  made.write_buffer_size = options.write_buffer_bytes;
  made.max_write_buffer_number = 3;
  made.compression = rocksdb::kNoCompression;  // keys and generations are noise
  made.paranoid_file_checks = false;           // blocks carry checksums already
  return made;
}

class RocksIndex final : public ShardIndex {
 public:
  RocksIndex(std::string path, TargetIdentity identity, std::unique_ptr<rocksdb::Env> env,
             std::unique_ptr<rocksdb::DB> database,
             std::vector<rocksdb::ColumnFamilyHandle*> families)
      : path_(std::move(path)),
        identity_(std::move(identity)),
        env_(std::move(env)),
        database_(std::move(database)),
        families_(std::move(families)) {}

  RocksIndex(const RocksIndex&) = delete;
  RocksIndex& operator=(const RocksIndex&) = delete;

  ~RocksIndex() override {
    for (rocksdb::ColumnFamilyHandle* family : families_)
      database_->DestroyColumnFamilyHandle(family).PermitUncheckedError();
    database_->Close().PermitUncheckedError();
  }

  absl::StatusOr<std::optional<ShardRecord>> find(const BlockKey& key) override {
    rocksdb::PinnableSlice value;
    const rocksdb::Status status =
        database_->Get(rocksdb::ReadOptions(), shards(), slice(encode_block_key(key)), &value);
    return to_record(status, value);
  }

  absl::StatusOr<std::vector<std::optional<ShardRecord>>> find_many(
      std::span<const BlockKey> keys) override {
    std::vector<rocksdb::Slice> slices;
    slices.reserve(keys.size());
    for (const BlockKey& key : keys) slices.push_back(slice(encode_block_key(key)));
    std::vector<rocksdb::PinnableSlice> values(keys.size());
    std::vector<rocksdb::Status> statuses(keys.size());
    database_->MultiGet(rocksdb::ReadOptions(), shards(), keys.size(), slices.data(), values.data(),
                        statuses.data());
    std::vector<std::optional<ShardRecord>> records;
    records.reserve(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSIGN_OR_RETURN(std::optional<ShardRecord> record, to_record(statuses[i], values[i]));
      records.push_back(record);
    }
    return records;
  }

  absl::Status commit(std::span<const IndexChange> changes, Durability durability) override {
    RETURN_IF_ERROR(check_usable());
    // What the keys of this batch hold so far: the age order needs the record that goes away.
    std::map<BlockKey, std::optional<ShardRecord>> current;
    rocksdb::WriteBatch batch;
    for (const IndexChange& change : changes) {
      const auto* put = std::get_if<PutShard>(&change);
      const BlockKey& key = put != nullptr ? put->entry.key : std::get<EraseShard>(change).key;
      auto held = current.find(key);
      if (held == current.end()) {
        ASSIGN_OR_RETURN(std::optional<ShardRecord> record, find(key));
        held = current.emplace(key, record).first;
      }
      RETURN_IF_ERROR(add(batch, key, held->second, put));
      held->second = put != nullptr ? std::optional<ShardRecord>(put->entry.record) : std::nullopt;
    }
    return write(batch, durability);
  }

  absl::StatusOr<std::vector<ShardEntry>> list(const std::optional<BlockKey>& after,
                                               std::size_t limit) override {
    std::vector<ShardEntry> entries;
    const auto iterator = iterate(shards());
    if (after) {
      const std::string_view from = encode_block_key(*after);
      iterator->Seek(slice(from));
      if (iterator->Valid() && view(iterator->key()) == from) iterator->Next();
    } else {
      iterator->SeekToFirst();
    }
    for (; iterator->Valid() && entries.size() < limit; iterator->Next()) {
      ASSIGN_OR_RETURN(ShardEntry entry, entry_at(*iterator));
      entries.push_back(entry);
    }
    RETURN_IF_ERROR(to_status(iterator->status(), path_));
    return entries;
  }

  absl::StatusOr<std::vector<ShardEntry>> oldest(const std::optional<ShardEntry>& after,
                                                 std::size_t limit) override {
    std::vector<BlockKey> keys;
    const auto iterator = iterate(ages());
    if (after) {
      const std::string from = encode_age_key(*after);
      iterator->Seek(from);
      if (iterator->Valid() && view(iterator->key()) == from) iterator->Next();
    } else {
      iterator->SeekToFirst();
    }
    for (; iterator->Valid() && keys.size() < limit; iterator->Next()) {
      const std::optional<BlockKey> key = decode_age_key(view(iterator->key()));
      if (!key) return damaged(path_, "a key in the order of ages is not one of ours");
      keys.push_back(*key);
    }
    RETURN_IF_ERROR(to_status(iterator->status(), path_));
    ASSIGN_OR_RETURN(const auto records, find_many(keys));
    std::vector<ShardEntry> entries;
    entries.reserve(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!records[i]) return damaged(path_, "the order of ages names a shard that is not there");
      entries.push_back({keys[i], *records[i]});
    }
    return entries;
  }

  absl::Status for_each(const std::function<absl::Status(const ShardEntry&)>& visit) override {
    const auto iterator = iterate(shards());
    for (iterator->SeekToFirst(); iterator->Valid(); iterator->Next()) {
      ASSIGN_OR_RETURN(const ShardEntry entry, entry_at(*iterator));
      RETURN_IF_ERROR(visit(entry));
    }
    return to_status(iterator->status(), path_);
  }

  const TargetIdentity& identity() const override { return identity_; }
  std::uint32_t stored_minute() const override { return minute_; }

  absl::Status store_minute(std::uint32_t minute) override {
    if (minute <= minute_) return absl::OkStatus();
    RETURN_IF_ERROR(check_usable());
    rocksdb::WriteBatch batch;
    RETURN_IF_ERROR(to_status(batch.Put(kMinuteKey, encode_minute(minute)), path_));
    RETURN_IF_ERROR(write(batch, Durability::kSynced));
    minute_ = minute;
    return absl::OkStatus();
  }

  std::optional<StoredPlace> stored_place() const override { return place_; }

  absl::Status store_place(const StoredPlace& place) override {
    if (place == place_) return absl::OkStatus();
    RETURN_IF_ERROR(check_usable());
    rocksdb::WriteBatch batch;
    RETURN_IF_ERROR(to_status(batch.Put(kPlaceKey, encode_place(place)), path_));
    RETURN_IF_ERROR(write(batch, Durability::kSynced));
    place_ = place;
    return absl::OkStatus();
  }

  /// Compares the identity, or writes it into a new database; reads minute and place.
  absl::Status check_identity() {
    std::string value;
    rocksdb::Status status = database_->Get(rocksdb::ReadOptions(), kIdentityKey, &value);
    if (status.IsNotFound()) return write_identity();
    RETURN_IF_ERROR(to_status(status, path_));
    const std::optional<TargetIdentity> found = decode_identity(value);
    if (!found) return damaged(path_, "its identity is not one that this version writes");
    RETURN_IF_ERROR(check_equal("cluster", found->cluster_id, identity_.cluster_id));
    RETURN_IF_ERROR(check_equal("target", found->target_id, identity_.target_id));
    RETURN_IF_ERROR(
        check_equal("shard layout version", found->layout_version, identity_.layout_version));
    RETURN_IF_ERROR(check_equal("slot bytes", found->slot_bytes, identity_.slot_bytes));
    RETURN_IF_ERROR(check_equal("slot count", found->slot_count, identity_.slot_count));
    RETURN_IF_ERROR(read_minute());
    return read_place();
  }

 private:
  rocksdb::ColumnFamilyHandle* shards() const { return families_[1]; }
  rocksdb::ColumnFamilyHandle* ages() const { return families_[2]; }

  std::unique_ptr<rocksdb::Iterator> iterate(rocksdb::ColumnFamilyHandle* family) const {
    return std::unique_ptr<rocksdb::Iterator>(
        database_->NewIterator(rocksdb::ReadOptions(), family));
  }

  absl::StatusOr<std::optional<ShardRecord>> to_record(const rocksdb::Status& status,
                                                       const rocksdb::Slice& value) const {
    if (status.IsNotFound()) return std::optional<ShardRecord>();
    RETURN_IF_ERROR(to_status(status, path_));
    std::optional<ShardRecord> record = decode_record(view(value));
    if (!record) return damaged(path_, "a record is not one that this version writes");
    return record;
  }

  absl::StatusOr<ShardEntry> entry_at(const rocksdb::Iterator& iterator) const {
    const std::optional<BlockKey> key = decode_block_key(view(iterator.key()));
    const std::optional<ShardRecord> record = decode_record(view(iterator.value()));
    if (!key || !record) return damaged(path_, "a record is not one that this version writes");
    return ShardEntry{*key, *record};
  }

  absl::Status check_usable() const {
    if (!has_failed_) return absl::OkStatus();
    return absl::FailedPreconditionError(
        str_cat(path_, ": an earlier commit failed; open the index again"));
  }

  /// Adds one change. `put` null: an erasure.
  absl::Status add(rocksdb::WriteBatch& batch, const BlockKey& key,
                   const std::optional<ShardRecord>& before, const PutShard* put) const {
    if (before && before->state == ShardState::kPublished)
      RETURN_IF_ERROR(to_status(batch.Delete(ages(), encode_age_key({key, *before})), path_));
    if (put == nullptr)
      return to_status(batch.Delete(shards(), slice(encode_block_key(key))), path_);
    const ShardEntry& entry = put->entry;
    if (entry.record.state == ShardState::kPublished)
      RETURN_IF_ERROR(to_status(batch.Put(ages(), encode_age_key(entry), slice({})), path_));
    return to_status(batch.Put(shards(), slice(encode_block_key(key)), encode_record(entry.record)),
                     path_);
  }

  absl::Status write(rocksdb::WriteBatch& batch, Durability durability) {
    rocksdb::WriteOptions options;
    options.sync = durability == Durability::kSynced;
    absl::Status status = to_status(database_->Write(options, &batch), path_);
    if (!status.ok()) has_failed_ = true;
    return status;
  }

  absl::Status read_minute() {
    std::string value;
    const rocksdb::Status status = database_->Get(rocksdb::ReadOptions(), kMinuteKey, &value);
    if (status.IsNotFound()) return absl::OkStatus();
    RETURN_IF_ERROR(to_status(status, path_));
    const std::optional<std::uint32_t> minute = decode_minute(value);
    if (!minute) return damaged(path_, "its minute is not 4 bytes");
    minute_ = *minute;
    return absl::OkStatus();
  }

  absl::Status read_place() {
    std::string value;
    const rocksdb::Status status = database_->Get(rocksdb::ReadOptions(), kPlaceKey, &value);
    if (status.IsNotFound()) return absl::OkStatus();
    RETURN_IF_ERROR(to_status(status, path_));
    place_ = decode_place(value);
    if (!place_) return damaged(path_, "its place is not one that this version writes");
    return absl::OkStatus();
  }

  absl::Status write_identity() {
    rocksdb::WriteBatch batch;
    RETURN_IF_ERROR(to_status(batch.Put(kIdentityKey, encode_identity(identity_)), path_));
    return write(batch, Durability::kSynced);
  }

  template <typename T>
  absl::Status check_equal(std::string_view what, const T& found, const T& wanted) const {
    if (found == wanted) return absl::OkStatus();
    return absl::FailedPreconditionError(
        str_cat(path_, ": its ", what, " is ", found, ", not ", wanted));
  }

  const std::string path_;
  const TargetIdentity identity_;
  const std::unique_ptr<rocksdb::Env> env_;  // outlives the database
  const std::unique_ptr<rocksdb::DB> database_;
  const std::vector<rocksdb::ColumnFamilyHandle*> families_;  // default, shards, ages
  std::uint32_t minute_ = 0;
  std::optional<StoredPlace> place_;
  bool has_failed_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShardIndex>> open_rocks_index(const RocksIndexOptions& options) {
  std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(
      options.file_system ? options.file_system : rocksdb::FileSystem::Default());
  const std::shared_ptr<rocksdb::Cache> cache = rocksdb::NewLRUCache(options.cache_bytes);
  const rocksdb::ColumnFamilyOptions family = family_options(options, cache);
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, family}, {"shards", family}, {"ages", family}};
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* database = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(database_options(options, env.get()),
                                                   options.path, families, &handles, &database);
  RETURN_IF_ERROR(to_status(status, options.path));
  auto index =
      std::make_unique<RocksIndex>(options.path, options.identity, std::move(env),
                                   std::unique_ptr<rocksdb::DB>(database), std::move(handles));
  RETURN_IF_ERROR(index->check_identity());
  return index;
}

}  // namespace millrace::storage::index
