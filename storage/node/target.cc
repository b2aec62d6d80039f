#include "storage/node/target.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::storage::node {
namespace {

using index::Durability;
using index::ShardRecord;
using index::ShardState;

ShardReply reply(ShardResult result, std::string message = {}) {
  ShardReply made;
  made.result = result;
  made.message = std::move(message);
  return made;
}

ShardReply reply_about(ShardResult result, const ShardRecord& record) {
  ShardReply made;
  made.result = result;
  made.generation = record.generation;
  made.is_published = record.state == ShardState::kPublished;
  return made;
}

ListedShard listed(const index::ShardEntry& entry) {
  return {.key = entry.key,
          .generation = entry.record.generation,
          .is_published = entry.record.state == ShardState::kPublished,
          .ttl = entry.record.ttl,
          .depth = entry.record.depth,
          .touch_minute = entry.record.touch_minute};
}

}  // namespace

const char* target_state_name(TargetState state) {
  switch (state) {
    case TargetState::kServing:
      return "serving";
    case TargetState::kReadOnly:
      return "read_only";
    case TargetState::kFailed:
      break;
  }
  return "failed";
}

std::optional<BlockKey> key_before(BlockKey key) {
  for (std::size_t i = key.bytes.size(); i-- > 0;) {
    if (key.bytes[i]-- != 0) return key;
  }
  return std::nullopt;
}

Target::Target(const TargetSettings& settings, disk::SlotIo& io, index::ShardIndex& index,
               const NodeMetrics& metrics, TimePoint now)
    : settings_(settings),
      io_file_(io),
      index_(index),
      metrics_(metrics),
      started_(now),
      now_(now),
      slots_(index.identity().slot_count),
      leases_(settings.max_leases) {}

absl::StatusOr<std::unique_ptr<Target>> Target::open(const TargetSettings& settings,
                                                     disk::SlotIo& io, index::ShardIndex& index,
                                                     const NodeMetrics& metrics, TimePoint now) {
  CHECK(settings.queue_depth >= 2 && settings.watermarks.is_valid());
  const index::TargetIdentity& identity = index.identity();
  CHECK(identity.slot_bytes > 0 && identity.slot_bytes % kPageBytes == 0);
  if (io.size_bytes() / identity.slot_bytes < identity.slot_count)
    return absl::FailedPreconditionError(str_cat(
        "target ", identity.target_id, ": its slot file has ", io.size_bytes(), " bytes, not ",
        identity.slot_count, " slots of ", identity.slot_bytes, ": is it another target's?"));
  std::unique_ptr<Target> target(new Target(settings, io, index, metrics, now));
  RETURN_IF_ERROR(target->load(now));
  return target;
}

absl::Status Target::load(TimePoint now) {
  start_minute_ = index_.stored_minute();
  return index_.for_each([&](const index::ShardEntry& entry) -> absl::Status {
    if (!slots_.mark_used(entry.record.slot))
      return absl::DataLossError(str_cat("target ", index_.identity().target_id,
                                         ": two records name slot ", entry.record.slot,
                                         ", or it is not one of ", slots_.slot_count()));
    // A touch may have become durable after the minute that it was made in was last stored.
    start_minute_ = std::max(start_minute_, entry.record.touch_minute);
    if (entry.record.state == ShardState::kPending)
      pending_[entry.key] = {entry.record.generation, now};
    return absl::OkStatus();
  });
}

std::uint32_t Target::minute(TimePoint now) const {
  const auto passed = std::chrono::duration_cast<std::chrono::minutes>(now - started_).count();
  return start_minute_ + static_cast<std::uint32_t>(std::max<std::int64_t>(passed, 0));
}

std::uint64_t Target::published_count() const {
  const std::uint64_t others =
      slots_.cooling_count() + slots_.bad_count() + pending_.size() + writing_.size();
  return slots_.used_count() - std::min(slots_.used_count(), others);
}

void Target::handle(ShardOperation operation, ShardReplyCallback done, TimePoint now) {
  now_ = std::max(now_, now);
  const char* const name = operation_name(operation);
  ShardReplyCallback counted = [this, name, done = std::move(done)](ShardReply answer) {
    metrics_.requests.with({name, shard_result_name(answer.result)}).add();
    done(std::move(answer));
  };
  if (state_ == TargetState::kFailed) return counted(reply(ShardResult::kIoError, reason_));
  if (!place_) return counted(reply(ShardResult::kBusy, "this target is a spare"));
  if (is_emptying_) return answer_while_emptying(operation, counted, now);
  if (auto* write_shard = std::get_if<WriteShard>(&operation)) {
    write(*write_shard, std::move(counted));
  } else if (const auto* publish_shard = std::get_if<PublishShard>(&operation)) {
    publish(*publish_shard, counted, now);
  } else if (const auto* drop_shard = std::get_if<DropShard>(&operation)) {
    drop(*drop_shard, counted, now);
  } else if (const auto* read_shard = std::get_if<ReadShard>(&operation)) {
    read_own(read_shard->key, IoPurpose::kServe, std::move(counted));
  } else if (const auto* query_keys = std::get_if<QueryKeys>(&operation)) {
    query(*query_keys, counted, now);
  } else if (const auto* touch_keys = std::get_if<TouchKeys>(&operation)) {
    touch(*touch_keys, counted, now);
  } else if (const auto* list_shards = std::get_if<ListShards>(&operation)) {
    // Behind the commit, so that it shows what this turn answered.
    after_commit_.emplace_back([this, what = *list_shards, counted = std::move(counted), now] {
      list(what, counted, now);
    });
  } else {
    const bool is_queued = queue_repair(std::get<RepairShard>(operation).key);
    counted(reply(is_queued ? ShardResult::kOk : ShardResult::kBusy));
  }
}

ShardReply Target::refuse_unless_writable() const {
  if (state_ == TargetState::kServing) return reply(ShardResult::kOk);
  return reply(ShardResult::kIoError, reason_);
}

ShardReply Target::check_new_shard(std::span<const std::byte> shard, ShardHeader& header) const {
  const ShardDefect defect = read_shard(shard, header);
  if (defect != ShardDefect::kNone) {
    ShardReply made = reply(ShardResult::kInvalid,
                            str_cat("the shard to be written is bad: ", shard_defect_name(defect)));
    made.defect = defect;
    return made;
  }
  if (shard.size() != kShardHeaderBytes + header.payload_bytes)
    return reply(ShardResult::kInvalid, str_cat(shard.size(),
                                                " bytes, of which header and payload "
                                                "are ",
                                                kShardHeaderBytes + header.payload_bytes));
  if (shard.size() > index_.identity().slot_bytes)
    return reply(ShardResult::kInvalid, str_cat("a shard of ", shard.size(), " bytes; slots have ",
                                                index_.identity().slot_bytes));
  if (header.shard_index != place_->shard_index || header.data_shards != place_->data_shards ||
      header.parity_shards != place_->parity_shards)
    return reply(ShardResult::kInvalid,
                 str_cat("shard ", header.shard_index, " of ", header.data_shards, "+",
                         header.parity_shards, "; this target holds shard ", place_->shard_index,
                         " of ", place_->data_shards, "+", place_->parity_shards));
  return reply(ShardResult::kOk);
}

void Target::write(WriteShard& operation, ShardReplyCallback done) {
  ShardReply answer = refuse_unless_writable();
  if (answer.result != ShardResult::kOk) return done(std::move(answer));
  ShardHeader header;
  answer = check_new_shard(operation.shard, header);
  if (answer.result != ShardResult::kOk) return done(std::move(answer));

  const auto writing = writing_.find(header.key);
  if (writing != writing_.end()) {
    const ShardRecord& other = writing->second.record;
    const bool is_same = other.generation == header.generation;
    return done(reply_about(is_same ? ShardResult::kBusy : ShardResult::kExists, other));
  }
  const auto found = find(header.key);
  if (!found.ok()) return done(index_error(found.status()));
  if (*found) {
    const bool is_same = (*found)->generation == header.generation;
    return done(reply_about(is_same ? ShardResult::kOk : ShardResult::kExists, **found));
  }
  start_write(operation.shard, header, 0, false, std::move(done));
}

void Target::start_write(const std::vector<std::byte>& shard, const ShardHeader& header,
                         std::uint32_t touch_minute, bool is_rebuilt, ShardReplyCallback done) {
  if (!has_room_for_io()) return done(reply(ShardResult::kBusy, "too much I/O is in flight"));
  const std::optional<std::uint64_t> slot = slots_.take();
  if (!slot) return done(reply(ShardResult::kFull, "no slot is free"));
  disk::PageBuffer buffer(shard.size());
  std::memcpy(buffer.data(), shard.data(), shard.size());
  std::memset(buffer.data() + shard.size(), 0, buffer.size() - shard.size());
  metrics_.bytes.with({"write", is_rebuilt ? "rebuild" : "serve"})
      .add(static_cast<double>(shard.size()));
  Writing writing;
  writing.record = {.slot = *slot,
                    .generation = header.generation,
                    .state = is_rebuilt ? ShardState::kPublished : ShardState::kPending,
                    .ttl = header.ttl,
                    .depth = header.depth,
                    .touch_minute = touch_minute,
                    .shard_bytes = static_cast<std::uint32_t>(shard.size())};
  writing.done = std::move(done);
  writing.is_rebuilt = is_rebuilt;
  writing_.emplace(header.key, std::move(writing));
  submit(disk::IoKind::kWrite, *slot, std::move(buffer),
         {.written = header.key, .reading = std::nullopt});
}

void Target::publish(const PublishShard& operation, const ShardReplyCallback& done, TimePoint now) {
  ShardReply refused = refuse_unless_writable();
  if (refused.result != ShardResult::kOk) return done(std::move(refused));
  const auto found = find(operation.key);
  if (!found.ok()) return done(index_error(found.status()));
  if (!*found) return done(reply(ShardResult::kNotFound));
  ShardRecord record = **found;
  if (record.generation != operation.generation)
    return done(reply_about(ShardResult::kNotFound, record));
  if (record.state == ShardState::kPublished) return done(reply_about(ShardResult::kOk, record));
  record.state = ShardState::kPublished;
  record.touch_minute = minute(now);
  stage(index::PutShard{{operation.key, record}}, Durability::kSynced,
        [this, key = operation.key, record, done](const absl::Status& committed) {
          if (!committed.ok()) return done(index_error(committed));
          pending_.erase(key);
          done(reply_about(ShardResult::kOk, record));
        });
}

void Target::drop(const DropShard& operation, const ShardReplyCallback& done, TimePoint now) {
  ShardReply refused = refuse_unless_writable();
  if (refused.result != ShardResult::kOk) return done(std::move(refused));
  const auto is_meant = [&](Generation generation) {
    return operation.generation == 0 || operation.generation == generation;
  };
  const auto rebuilding = rebuilding_.find(operation.key);
  // A write of another generation that is given up says nothing about the block that is stored.
  if (rebuilding != rebuilding_.end() && is_meant(rebuilding->second.generation))
    rebuilding->second.is_dropped = true;
  const auto writing = writing_.find(operation.key);
  if (writing != writing_.end() && is_meant(writing->second.record.generation))
    writing->second.is_dropped = true;
  const auto found = find(operation.key);
  if (!found.ok()) return done(index_error(found.status()));
  if (!*found || !is_meant((*found)->generation)) return done(reply(ShardResult::kOk));
  if (leases_.is_leased(operation.key, now)) {
    drops_at_lease_end_[operation.key] = (*found)->generation;
    return done(reply(ShardResult::kOk));
  }
  const bool is_published = (*found)->state == ShardState::kPublished;
  metrics_.evictions
      .with({evict_reason_name(is_published ? EvictReason::kTombstone : EvictReason::kUnpublished)})
      .add();
  stage_erase(operation.key, **found, [this, done](const absl::Status& committed) {
    done(committed.ok() ? reply(ShardResult::kOk) : index_error(committed));
  });
}

void Target::read_own(const BlockKey& key, IoPurpose purpose, ShardReplyCallback done) {
  if (state_ == TargetState::kFailed) return done(reply(ShardResult::kIoError, reason_));
  if (!place_ || is_emptying_)
    return done(reply(ShardResult::kBusy, "this target has no place for its shards"));
  const auto found = find(key);
  if (!found.ok()) return done(index_error(found.status()));
  if (!*found || (*found)->state != ShardState::kPublished)
    return done(reply(ShardResult::kNotFound));
  if (!has_room_for_io()) return done(reply(ShardResult::kBusy, "too much I/O is in flight"));
  const ShardRecord& record = **found;
  slots_.pin(record.slot);
  Reading reading{.key = key,
                  .record = record,
                  .purpose = purpose,
                  .shard_index = place_->shard_index,
                  .done = std::move(done)};
  submit(disk::IoKind::kRead, record.slot, disk::PageBuffer(record.shard_bytes),
         {.written = std::nullopt, .reading = std::move(reading)});
}

void Target::query(const QueryKeys& operation, const ShardReplyCallback& done, TimePoint now) {
  if (operation.keys.size() > kMaxKeysPerRequest)
    return done(reply(ShardResult::kInvalid, str_cat(operation.keys.size(), " keys; at most ",
                                                     kMaxKeysPerRequest, " are allowed")));
  const auto records = index_.find_many(operation.keys);
  if (!records.ok()) return done(index_error(records.status()));
  ShardReply answer = reply(ShardResult::kOk);
  answer.present.reserve(operation.keys.size());
  const auto lease = std::min(operation.lease, settings_.max_lease);
  for (std::size_t i = 0; i < operation.keys.size(); ++i) {
    const BlockKey& key = operation.keys[i];
    const auto staged = staged_.find(key);
    const std::optional<ShardRecord>& record =
        staged != staged_.end() ? staged->second : (*records)[i];
    const bool is_present =
        record && record->state == ShardState::kPublished && evicting_.count(key) == 0;
    answer.present.push_back(is_present);
    if (is_present && lease.count() > 0 && !leases_.grant(key, now + lease))
      return done(reply(ShardResult::kBusy, "no more keys can be leased"));
  }
  done(std::move(answer));
}

void Target::touch(const TouchKeys& operation, const ShardReplyCallback& done, TimePoint now) {
  if (operation.keys.size() > kMaxKeysPerRequest)
    return done(reply(ShardResult::kInvalid, str_cat(operation.keys.size(), " keys; at most ",
                                                     kMaxKeysPerRequest, " are allowed")));
  ShardReply refused = refuse_unless_writable();
  if (refused.result != ShardResult::kOk) return done(std::move(refused));
  const std::uint32_t now_minute = minute(now);
  for (const BlockKey& key : operation.keys) {
    const auto found = find(key);
    if (!found.ok()) return done(index_error(found.status()));
    if (!*found || (*found)->state != ShardState::kPublished) continue;
    ShardRecord record = **found;
    record.touch_minute = std::max(record.touch_minute, now_minute);
    record.ttl = kv::longer_ttl(record.ttl, operation.ttl, settings_.ttl);
    if (record == **found) continue;
    stage(index::PutShard{{key, record}}, Durability::kBuffered, [](const absl::Status&) {});
  }
  done(reply(ShardResult::kOk));
}

void Target::list(const ListShards& operation, const ShardReplyCallback& done, TimePoint now) {
  const std::size_t limit = std::clamp<std::size_t>(operation.limit, 1, kMaxKeysPerRequest);
  const std::optional<BlockKey> after =
      operation.from_start ? key_before(operation.after) : std::optional(operation.after);
  const auto entries = index_.list(after, limit);
  if (!entries.ok()) return done(index_error(entries.status()));
  ShardReply answer = reply(ShardResult::kOk);
  answer.listed.reserve(entries->size());
  for (const index::ShardEntry& entry : *entries) answer.listed.push_back(listed(entry));
  answer.is_end = entries->size() < limit;
  answer.minute = minute(now);
  done(std::move(answer));
}

bool Target::begin_rebuild(const BlockKey& key, Generation generation) {
  if (writing_.count(key) > 0) return false;
  return rebuilding_.emplace(key, Rebuilding{.generation = generation}).second;
}

void Target::store_rebuilt(std::vector<std::byte> shard, std::uint32_t touch_minute,
                           ShardReplyCallback done, TimePoint now) {
  ShardHeader header;
  CHECK(read_shard(shard, header) == ShardDefect::kNone, "rebuilders seal what they store");
  const auto rebuilding = rebuilding_.find(header.key);
  CHECK(rebuilding != rebuilding_.end(), "begin_rebuild() comes first");
  const bool is_dropped = rebuilding->second.is_dropped;
  rebuilding_.erase(rebuilding);
  if (is_dropped) return done(reply(ShardResult::kNotFound, "dropped while it was rebuilt"));
  ShardReply answer = refuse_unless_writable();
  if (answer.result == ShardResult::kOk && !place_) answer = reply(ShardResult::kBusy);
  if (answer.result == ShardResult::kOk) answer = check_new_shard(shard, header);
  if (answer.result != ShardResult::kOk) return done(std::move(answer));
  if (writing_.count(header.key) > 0) return done(reply(ShardResult::kBusy, "is being written"));
  start_write(shard, header, std::min(touch_minute, minute(now)), true, std::move(done));
}

bool Target::begin_eviction(const BlockKey& key, TimePoint now) {
  if (leases_.is_leased(key, now)) return false;
  evicting_.insert(key);
  return true;
}

void Target::evict(const BlockKey& key, Generation generation, EvictReason reason) {
  const auto found = find(key);
  const bool is_there = found.ok() && *found && (*found)->generation == generation;
  if (state_ != TargetState::kServing || !is_there) {
    evicting_.erase(key);
    return;
  }
  metrics_.evictions.with({evict_reason_name(reason)}).add();
  stage_erase(key, **found, [this, key](const absl::Status&) { evicting_.erase(key); });
}

void Target::postpone_pending(const BlockKey& key) {
  const auto found = pending_.find(key);
  if (found != pending_.end()) found->second.since = now_;
}

std::optional<BlockKey> Target::next_repair() {
  if (repairs_.empty()) return std::nullopt;
  const BlockKey key = repairs_.front();
  repairs_.pop_front();
  repair_keys_.erase(key);
  return key;
}

bool Target::queue_repair(const BlockKey& key) {
  if (repair_keys_.count(key) > 0) return true;
  if (repairs_.size() >= settings_.repair_queue) return false;
  repair_keys_.insert(key);
  repairs_.push_back(key);
  return true;
}

}  // namespace millrace::storage::node
