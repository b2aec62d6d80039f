// The half of Target that works with completions and commits.

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/str_cat.h"
#include "storage/node/target.h"

namespace millrace::storage::node {
namespace {

using index::Durability;
using index::ShardRecord;
using index::ShardState;

ShardReply error_reply(ShardResult result, std::string_view message) {
  ShardReply made;
  made.result = result;
  made.message = message;
  return made;
}

const char* io_kind_name(disk::IoKind kind) {
  switch (kind) {
    case disk::IoKind::kRead:
      return "read";
    case disk::IoKind::kWrite:
      return "write";
    case disk::IoKind::kSync:
      break;
  }
  return "sync";
}

}  // namespace

bool Target::has_room_for_io() const {
  // One place stays free, so that a sync always finds room.
  return io_.size() + 1 < static_cast<std::size_t>(settings_.queue_depth);
}

std::uint64_t Target::submit(disk::IoKind kind, std::uint64_t slot, disk::PageBuffer buffer,
                             InFlight in_flight) {
  disk::SlotOperation operation;
  operation.id = next_io_id_++;
  operation.kind = kind;
  operation.offset = slot * index_.identity().slot_bytes;
  operation.buffer = std::move(buffer);
  const std::uint64_t id = operation.id;
  io_.emplace(id, std::move(in_flight));
  const absl::Status status = io_file_.submit(operation);
  CHECK(status.ok(), "has_room_for_io() keeps to the depth of the file");
  return id;
}

void Target::on_completions(std::vector<disk::SlotCompletion> completions, TimePoint now) {
  now_ = std::max(now_, now);
  for (disk::SlotCompletion& completion : completions) {
    const auto found = io_.find(completion.id);
    CHECK(found != io_.end(), "everything submitted completes once");
    InFlight in_flight = std::move(found->second);
    io_.erase(found);
    if (!completion.status.ok()) {
      metrics_.io_errors.with({io_kind_name(completion.kind)}).add();
      if (completion.status.code() == absl::StatusCode::kUnavailable)
        fail(TargetState::kFailed, message_of(completion.status));
    }
    if (in_flight.written) {
      on_written(*in_flight.written, completion.status);
    } else if (in_flight.reading) {
      on_read(std::move(*in_flight.reading), completion.status, completion.buffer.bytes());
    } else {
      on_synced(completion.status);
    }
  }
}

void Target::on_written(const BlockKey& key, const absl::Status& status) {
  if (status.ok()) {
    written_.push_back(key);
    return;
  }
  const auto found = writing_.find(key);
  CHECK(found != writing_.end());
  Writing writing = std::move(found->second);
  writing_.erase(found);
  // Part of it may have reached the medium, or still will: the slot is given up until the next
  // start, when no write can be under way.
  slots_.condemn(writing.record.slot);
  const std::string message = str_cat("write: ", message_of(status));
  const bool is_full = status.code() == absl::StatusCode::kResourceExhausted;
  if (is_full || status.code() == absl::StatusCode::kPermissionDenied)
    fail(TargetState::kReadOnly, message, is_full);
  writing.done(error_reply(is_full ? ShardResult::kFull : ShardResult::kIoError, message));
}

void Target::on_read(Reading reading, const absl::Status& status,
                     std::span<const std::byte> bytes) {
  slots_.unpin(reading.record.slot);
  const char* const purpose = io_purpose_name(reading.purpose);
  if (!status.ok()) {
    ask_for_repair(reading);
    reading.done(error_reply(ShardResult::kIoError, str_cat("read: ", message_of(status))));
    return;
  }
  metrics_.bytes.with({"read", purpose}).add(reading.record.shard_bytes);
  ShardHeader header;
  const std::span<const std::byte> shard = bytes.first(reading.record.shard_bytes);
  ShardReply answer;
  answer.generation = reading.record.generation;
  answer.defect =
      verify_shard(shard, reading.key, reading.shard_index, reading.record.generation, header);
  if (answer.defect == ShardDefect::kNone &&
      shard.size() != kShardHeaderBytes + header.payload_bytes)
    answer.defect = ShardDefect::kLayout;
  if (answer.defect != ShardDefect::kNone) {
    metrics_.defects.with({purpose, shard_defect_name(answer.defect)}).add();
    ask_for_repair(reading);
    answer.result = ShardResult::kBadShard;
    answer.message = shard_defect_name(answer.defect);
    reading.done(std::move(answer));
    return;
  }
  answer.result = ShardResult::kOk;
  answer.is_published = true;
  answer.shard.assign(shard.begin(), shard.end());
  reading.done(std::move(answer));
}

void Target::ask_for_repair(const Reading& reading) {
  // Who reads to repair it knows already.
  if (reading.purpose == IoPurpose::kRebuild) return;
  (void)queue_repair(reading.key);  // full: the next reader or scrub asks again
}

void Target::start_sync() {
  if (is_syncing_ || written_.empty()) return;
  is_syncing_ = true;
  syncing_ = std::exchange(written_, {});
  submit(disk::IoKind::kSync, 0, {}, {});
}

void Target::on_synced(const absl::Status& status) {
  is_syncing_ = false;
  if (!status.ok() && state_ == TargetState::kServing)
    fail(TargetState::kReadOnly, str_cat("sync: ", message_of(status)));
  for (const BlockKey& key : std::exchange(syncing_, {})) {
    const auto found = writing_.find(key);
    CHECK(found != writing_.end());
    Writing writing = std::move(found->second);
    writing_.erase(found);
    if (!status.ok() || state_ != TargetState::kServing) {
      slots_.condemn(writing.record.slot);
      writing.done(error_reply(ShardResult::kIoError, reason_));
    } else if (writing.is_dropped) {
      slots_.put_back(writing.record.slot);  // no record ever named it
      writing.done(error_reply(ShardResult::kNotFound, "dropped while it was written"));
    } else {
      store_record(key, std::move(writing));
    }
  }
}

void Target::store_record(const BlockKey& key, Writing writing) {
  const auto before = find(key);
  if (!before.ok()) {
    slots_.put_back(writing.record.slot);
    return writing.done(index_error(before.status()));
  }
  if (*before && !writing.is_rebuilt) {
    // A rebuild of the same block was faster.
    slots_.put_back(writing.record.slot);
    ShardReply answer;
    answer.generation = (*before)->generation;
    answer.is_published = (*before)->state == ShardState::kPublished;
    answer.result =
        answer.generation == writing.record.generation ? ShardResult::kOk : ShardResult::kExists;
    return writing.done(std::move(answer));
  }
  const std::optional<std::uint64_t> replaced =
      *before ? std::optional((*before)->slot) : std::nullopt;
  const ShardRecord record = writing.record;
  stage(
      index::PutShard{{key, record}}, Durability::kSynced,
      [this, key, record, replaced, done = std::move(writing.done)](const absl::Status& committed) {
        if (!committed.ok()) return done(index_error(committed));
        if (replaced) slots_.cool(*replaced, now_ + settings_.slot_grace);
        ShardReply answer;
        answer.result = ShardResult::kOk;
        answer.generation = record.generation;
        answer.is_published = record.state == ShardState::kPublished;
        if (answer.is_published) {
          pending_.erase(key);
        } else {
          pending_[key] = {record.generation, now_};
        }
        done(std::move(answer));
      });
}

absl::StatusOr<std::optional<ShardRecord>> Target::find(const BlockKey& key) {
  const auto staged = staged_.find(key);
  if (staged != staged_.end()) return staged->second;
  return index_.find(key);
}

ShardReply Target::index_error(const absl::Status& status) {
  metrics_.io_errors.with({"index"}).add();
  fail_index(status);
  const std::string message = str_cat("index: ", message_of(status));
  const bool is_full = status.code() == absl::StatusCode::kResourceExhausted;
  return error_reply(is_full ? ShardResult::kFull : ShardResult::kIoError, message);
}

void Target::stage(index::IndexChange change, Durability durability, Continuation then) {
  if (const auto* put = std::get_if<index::PutShard>(&change)) {
    staged_[put->entry.key] = put->entry.record;
  } else {
    staged_[std::get<index::EraseShard>(change).key] = std::nullopt;
  }
  changes_.push_back(std::move(change));
  if (durability == Durability::kSynced) durability_ = Durability::kSynced;
  continuations_.push_back(std::move(then));
}

void Target::stage_erase(const BlockKey& key, const ShardRecord& record, Continuation then) {
  stage(index::EraseShard{key}, Durability::kSynced,
        [this, key, slot = record.slot, then = std::move(then)](const absl::Status& committed) {
          if (committed.ok()) {
            slots_.cool(slot, now_ + settings_.slot_grace);
            pending_.erase(key);
          }
          then(committed);
        });
}

void Target::commit() {
  // Continuations may stage again; that is the next round's.
  while (!changes_.empty()) {
    const std::vector<index::IndexChange> changes = std::exchange(changes_, {});
    const std::vector<Continuation> continuations = std::exchange(continuations_, {});
    absl::Status status = absl::UnavailableError(reason_);
    if (state_ == TargetState::kServing) status = index_.commit(changes, durability_);
    durability_ = Durability::kBuffered;
    staged_.clear();
    if (!status.ok()) fail_index(status);
    for (const Continuation& then : continuations) then(status);
  }
}

void Target::expire_leases(TimePoint now) {
  for (const BlockKey& key : leases_.expire(now)) {
    const auto deferred = drops_at_lease_end_.find(key);
    if (deferred == drops_at_lease_end_.end()) continue;
    const DropShard operation{key, deferred->second};
    drops_at_lease_end_.erase(deferred);
    drop(
        operation, [](const ShardReply&) {}, now);
  }
}

void Target::store_minute(TimePoint now) {
  if (state_ != TargetState::kServing || minute(now) <= index_.stored_minute()) return;
  const absl::Status status = index_.store_minute(minute(now));
  if (!status.ok()) (void)index_error(status);
}

void Target::end_turn(TimePoint now) {
  now_ = std::max(now_, now);
  expire_leases(now);
  commit();
  for (const std::function<void()>& then : std::exchange(after_commit_, {})) then();
  commit();  // what the answers led to
  empty_some(now);
  commit();
  store_minute(now);
  slots_.reclaim(now);
  start_sync();
  io_file_.flush();
}

void Target::fail(TargetState state, std::string_view reason, bool is_full) {
  if (static_cast<int>(state) <= static_cast<int>(state_)) return;
  state_ = state;
  reason_ = reason;
  is_full_ = is_full;
}

void Target::fail_index(const absl::Status& status) {
  fail(TargetState::kReadOnly, str_cat("index: ", message_of(status)),
       status.code() == absl::StatusCode::kResourceExhausted);
}

}  // namespace millrace::storage::node
