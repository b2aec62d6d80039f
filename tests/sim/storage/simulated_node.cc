#include "tests/sim/storage/simulated_node.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/str_cat.h"
#include "storage/wire/shard_format.h"

namespace millrace::storage::sim {
namespace {

constexpr auto kTick = std::chrono::milliseconds(500);
constexpr std::size_t kMailbox = 256;

ShardReply refusal(ShardResult result, std::uint64_t epoch) {
  ShardReply reply;
  reply.result = result;
  reply.map_epoch = epoch;
  return reply;
}

}  // namespace

SimulatedNode::SimulatedNode(NodeSurroundings& surroundings, std::size_t number)
    : surroundings_(surroundings), number_(number), target_id_(target_name(number)) {
  wipe();
}

SimulatedNode::~SimulatedNode() = default;

void SimulatedNode::wipe() {
  CHECK(host_ == nullptr);
  const index::TargetIdentity identity = {
      .cluster_id = "c",
      .target_id = target_id_,
      .slot_bytes = static_cast<std::uint32_t>(
          slot_bytes_for(surroundings_.block_bytes, surroundings_.data_shards)),
      .slot_count = surroundings_.slots};
  disk_ = std::make_unique<disk::SimulatedDisk>(surroundings_.random());
  index_ = std::make_unique<SimulatedIndex>(identity, *disk_, *this, surroundings_.random());
  rotten_.clear();
  minute_at_stop_ = 0;
  if (++disks_ > 1) surroundings_.oracle.on_wiped(number_);
}

void SimulatedNode::start() {
  CHECK(host_ == nullptr);
  ++life_;
  clock_offset_ = std::chrono::seconds(surroundings_.random() % 10'000'000);
  shown_epoch_ = 0;
  if (!open()) return;
  if (host_->target().minute(clock()) < minute_at_stop_)
    surroundings_.oracle.fail(str_cat("the clock of target ", number_, " went back"));
  want_turn(delay(1000));
}

bool SimulatedNode::open() {
  const index::TargetIdentity& identity = index_->identity();
  slots_ = std::make_unique<WatchedSlots>(*disk_, "/slots", identity.slot_bytes,
                                          identity.slot_count, surroundings_.settings.queue_depth,
                                          surroundings_.random(), *this);
  auto target =
      node::Target::open(surroundings_.settings, *slots_, *index_, surroundings_.metrics, clock());
  if (!target.ok()) {
    surroundings_.oracle.fail(
        str_cat("target ", number_, " does not open: ", message_of(target.status())));
    return false;
  }
  host_ = std::make_unique<node::TargetHost>(*std::move(target), surroundings_.settings, *this,
                                             surroundings_.metrics, clock());
  slot_owner_.clear();
  const std::map<BlockKey, index::ShardRecord> known = records();
  for (const auto& [key, record] : known) slot_owner_[record.slot] = key;
  surroundings_.oracle.on_opened(number_, known);
  show_stored_shards();
  return true;
}

void SimulatedNode::stop(Loss loss) {
  CHECK(host_ != nullptr);
  ++life_;
  minute_at_stop_ = index_->stored_minute();
  // The kernel carries out some of what it was given.
  if (loss == Loss::kProcess) (void)slots_->run(surroundings_.random() % 16);
  host_.reset();
  slots_.reset();
  mailbox_.clear();
  peer_replies_.clear();
  held_.clear();
  is_frozen_ = false;
  has_wish_ = false;
  freed_at_.clear();
  leases_.clear();
  next_turn_ = TimePoint::max();
  if (loss == Loss::kPower) disk_->restart();
  index_->reopen(loss == Loss::kPower);
}

void SimulatedNode::thaw() {
  is_frozen_ = false;
  for (const std::function<void()>& job : std::exchange(held_, {})) job();
  if (host_ != nullptr) want_turn(delay(1000));
}

void SimulatedNode::rot() {
  if (host_ == nullptr || slot_owner_.empty()) return;
  auto victim = slot_owner_.begin();
  std::advance(victim, static_cast<long>(surroundings_.random() % slot_owner_.size()));
  const auto record = index_->find(victim->second);
  const std::uint64_t at = surroundings_.random() % (*record)->shard_bytes;
  std::vector<std::byte> byte = content_of(victim->first);
  if (byte.empty()) return;  // the disk is gone
  byte = {byte[at] ^ std::byte{static_cast<unsigned char>(1U << surroundings_.random() % 8)}};
  rotten_.insert(victim->first);
  disk_->corrupt(slots_->file(), victim->first * index_->identity().slot_bytes + at, byte);
  surroundings_.oracle.on_damaged(number_, victim->second);
}

void SimulatedNode::offer_map(const std::shared_ptr<const StorageMap>& map) {
  if (host_ == nullptr || is_frozen_) return;
  if (map_ != nullptr && map_->epoch >= map->epoch) return;
  map_ = map;
  want_turn(delay(100));
}

void SimulatedNode::handle(ShardRequest request, ShardReplyCallback done) {
  if (host_ == nullptr) return;
  if (is_frozen_) {
    if (held_.size() < kMailbox)
      held_.emplace_back([this, request = std::move(request), done = std::move(done)]() mutable {
        handle(std::move(request), std::move(done));
      });
    return;
  }
  if (map_ == nullptr) return done(refusal(ShardResult::kBusy, 0));
  const std::uint64_t epoch = map_->epoch;
  if (request.cluster_id != map_->cluster_id)
    return done(refusal(ShardResult::kWrongCluster, epoch));
  if (request.map_epoch < epoch) return done(refusal(ShardResult::kStaleMap, epoch));
  if (request.map_epoch > epoch) surroundings_.want_map(number_);
  if (request.target_id != target_id_) return done(refusal(ShardResult::kWrongTarget, epoch));
  if (mailbox_.size() >= kMailbox) return done(refusal(ShardResult::kBusy, epoch));
  Queued queued;
  queued.operation = std::move(request.operation);
  queued.overdue_at = request.deadline.count() > 0 ? clock() + request.deadline : TimePoint::max();
  queued.done = [done = std::move(done), epoch](ShardReply reply) {
    reply.map_epoch = epoch;
    done(std::move(reply));
  };
  mailbox_.push_back(std::move(queued));
  want_turn(delay(200));
}

void SimulatedNode::on_peer_reply(std::uint64_t call_id, ShardReply reply) {
  if (host_ == nullptr) return;
  if (is_frozen_) {
    if (held_.size() < kMailbox)
      held_.emplace_back(
          [this, call_id, reply = std::move(reply)] { on_peer_reply(call_id, reply); });
    return;
  }
  if (reply.result == ShardResult::kStaleMap) surroundings_.want_map(number_);
  peer_replies_.emplace_back(call_id, std::move(reply));
  want_turn(delay(200));
}

void SimulatedNode::scrub() {
  if (host_ != nullptr) host_->start_scrub(++last_wish_, clock());
}

void SimulatedNode::evict_to(double fraction) {
  if (host_ == nullptr) return;
  has_wish_ = true;
  host_->evict_to(++last_wish_, fraction, clock());
}

std::chrono::nanoseconds SimulatedNode::delay(std::uint64_t most_us) {
  const std::uint64_t us = surroundings_.random() % most_us + 1;
  return std::chrono::microseconds(us * static_cast<std::uint64_t>(slowness_));
}

void SimulatedNode::want_turn(std::chrono::nanoseconds after) {
  const TimePoint at = surroundings_.loop.now() + after;
  if (at >= next_turn_) return;
  next_turn_ = at;
  surroundings_.loop.post(after, [this, life = life_, at] {
    if (life == life_ && at == next_turn_) turn();
  });
}

void SimulatedNode::take(Queued queued) {
  const TimePoint now = clock();
  if (now >= queued.overdue_at) return queued.done(refusal(ShardResult::kOverdue, 0));
  const auto* query = std::get_if<QueryKeys>(&queued.operation);
  if (query == nullptr || query->lease.count() == 0)
    return host_->on_request(std::move(queued.operation), std::move(queued.done), now);
  const auto until = now + std::min(query->lease, surroundings_.settings.max_lease);
  auto noted = [this, keys = query->keys, until,
                done = std::move(queued.done)](const ShardReply& reply) {
    for (std::size_t i = 0; i < reply.present.size(); ++i) {
      if (!reply.present[i]) continue;
      TimePoint& lease = leases_[keys[i]];
      lease = std::max(lease, until);
    }
    done(reply);
  };
  host_->on_request(std::move(queued.operation), std::move(noted), now);
}

void SimulatedNode::turn() {
  next_turn_ = TimePoint::max();
  if (host_ == nullptr || is_frozen_) return;
  if (map_ != nullptr && shown_epoch_ != map_->epoch) {
    shown_epoch_ = map_->epoch;
    host_->set_map(*map_);
  }
  const TimePoint now = clock();
  host_->on_completions(slots_->run(surroundings_.random() % 8), now);
  for (auto& [call_id, reply] : std::exchange(peer_replies_, {}))
    host_->on_peer_reply(call_id, std::move(reply));
  for (Queued& queued : std::exchange(mailbox_, {})) take(std::move(queued));
  host_->turn(now);
  if (disk_->is_cut()) {
    stop(Loss::kPower);
    return surroundings_.on_power_cut(number_);
  }
  want_turn(slots_->in_flight() > 0 ? delay(600) : std::chrono::nanoseconds(kTick));
}

void SimulatedNode::send(const std::string& target_id, ShardOperation operation,
                         std::uint64_t call_id) {
  if (const auto* drop = std::get_if<DropShard>(&operation)) {
    const auto record = index_->find(drop->key);
    if (*record && (*record)->generation == drop->generation) {
      if (may_evict(drop->key, **record)) {
        surroundings_.oracle.on_eviction(drop->key, drop->generation);
      } else {
        surroundings_.oracle.fail(str_cat("target ", number_, " evicts without reason"));
      }
    }
  }
  ShardRequest request{.cluster_id = map_->cluster_id,
                       .map_epoch = map_->epoch,
                       .target_id = target_id,
                       .operation = std::move(operation),
                       .deadline = surroundings_.settings.peer_timeout};
  surroundings_.ask_peer(number_, target_id, std::move(request), call_id);
}

bool SimulatedNode::is_expired(const BlockKey& key, const index::ShardRecord& record) const {
  const kv::TtlPolicy& ttl = surroundings_.settings.ttl;
  return kv::is_expired(record.touch_minute, record.ttl, host_->target().minute(clock()), ttl) &&
         surroundings_.oracle.may_have_expired(key, record.generation,
                                               std::chrono::minutes(ttl.minutes(record.ttl)),
                                               surroundings_.loop.now());
}

bool SimulatedNode::may_evict(const BlockKey& key, const index::ShardRecord& record) const {
  if (has_wish_ || is_expired(key, record)) return true;
  const node::SlotTable& slots = host_->target().slots();
  return static_cast<double>(slots.used_count()) >
         surroundings_.settings.watermarks.start * static_cast<double>(slots.slot_count());
}

void SimulatedNode::on_index_change(const BlockKey& key,
                                    const std::optional<index::ShardRecord>& before,
                                    const std::optional<index::ShardRecord>& after, CommitEnd end) {
  RecordChange change{.target = number_, .key = key, .before = before, .after = after};
  change.is_certain = end == CommitEnd::kDone;
  change.place = host_->target().place();
  change.may_evict = before && may_evict(key, *before);
  const auto lease = leases_.find(key);
  change.is_leased = lease != leases_.end() && lease->second > clock();
  std::vector<std::byte> content;
  const bool is_new_slot = after && (!before || before->slot != after->slot);
  if (is_new_slot) {
    content = content_of(after->slot);
    change.content = content;
    const std::uint64_t pages = index_->identity().slot_bytes / kPageBytes;
    const std::set<std::uint64_t> unsynced = disk_->unsynced_pages(slots_->file());
    const auto first = unsynced.lower_bound(after->slot * pages);
    change.is_synced = first == unsynced.end() || *first >= (after->slot + 1) * pages;
  }
  change.is_damaged = after && rotten_.count(after->slot) > 0;
  surroundings_.oracle.on_record_change(change, surroundings_.loop.now());
  if (before && (!after || is_new_slot)) {
    slot_owner_.erase(before->slot);
    freed_at_[before->slot] = clock();
  }
  if (after) slot_owner_[after->slot] = key;
}

void SimulatedNode::on_write_submitted(std::uint64_t slot, int reads) {
  Oracle& oracle = surroundings_.oracle;
  if (reads > 0)
    oracle.fail(str_cat("target ", number_, " writes slot ", slot, " while it is read"));
  if (const auto owner = slot_owner_.find(slot); owner != slot_owner_.end()) {
    const auto lease = leases_.find(owner->second);
    const bool is_leased = lease != leases_.end() && lease->second > clock();
    oracle.fail(str_cat("target ", number_, " writes slot ", slot,
                        is_leased ? ", which a lease names" : ", which a record names"));
  }
  const auto freed = freed_at_.find(slot);
  if (freed != freed_at_.end() && clock() - freed->second < surroundings_.settings.slot_grace)
    oracle.fail(str_cat("target ", number_, " writes slot ", slot, " before its grace is over"));
}

std::vector<std::byte> SimulatedNode::content_of(std::uint64_t slot) const {
  const std::uint64_t bytes = index_->identity().slot_bytes;
  std::vector<std::byte> content(bytes);
  const std::optional<disk::SimulatedDisk::FileId> file = disk_->find("/slots");
  const auto count = disk_->read(*file, slot * bytes, content);
  content.resize(count.ok() ? *count : 0);
  return content;
}

std::map<BlockKey, index::ShardRecord> SimulatedNode::records() {
  std::map<BlockKey, index::ShardRecord> records;
  CHECK(index_
            ->for_each([&](const index::ShardEntry& entry) {
              records.emplace(entry.key, entry.record);
              return absl::OkStatus();
            })
            .ok());
  return records;
}

void SimulatedNode::show_stored_shards() {
  for (const auto& [key, record] : records()) {
    const std::vector<std::byte> content = content_of(record.slot);
    if (content.empty() || rotten_.count(record.slot) > 0) continue;
    ShardHeader header;
    if (read_shard(content, header) != ShardDefect::kNone) {
      surroundings_.oracle.fail(str_cat("target ", number_, " knows a shard that is torn"));
      continue;
    }
    surroundings_.oracle.on_stored_shard(number_, key, record, header.shard_index, content);
  }
}

bool SimulatedNode::holds(const BlockKey& key, Generation generation, std::uint8_t shard_index) {
  const auto record = index_->find(key);
  if (!*record || (*record)->generation != generation ||
      (*record)->state != index::ShardState::kPublished)
    return false;
  const std::vector<std::byte> content = content_of((*record)->slot);
  // What the medium has damaged is for the scrubber to find.
  if (content.empty() || rotten_.count((*record)->slot) > 0) return true;
  ShardHeader header;
  return verify_shard(content, key, shard_index, generation, header) == ShardDefect::kNone;
}

}  // namespace millrace::storage::sim
