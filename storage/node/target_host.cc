#include "storage/node/target_host.h"

#include <utility>

#include "common/str_cat.h"

namespace millrace::storage::node {

TargetHost::TargetHost(std::unique_ptr<Target> target, const TargetSettings& settings,
                       PeerLink& link, const NodeMetrics& metrics, TimePoint now)
    : settings_(settings),
      metrics_(metrics),
      target_(std::move(target)),
      peers_(link, settings.peer_timeout, settings.max_peer_calls),
      resolver_(*target_, peers_, settings_, metrics),
      evictor_(*target_, peers_, settings_, metrics),
      scrubber_(*target_, settings_, now),
      rebuilder_(*target_, peers_, settings_, metrics) {}

void TargetHost::set_map(const StorageMap& map) {
  view_ = group_view(map, target_->index().identity().target_id);
  placement_.emplace(map);
  if (!view_) {
    target_->set_place(std::nullopt);
    return;
  }
  target_->set_place(
      index::ShardPlace{.group_id = view_->group.id,
                        .shard_index = view_->own_index,
                        .data_shards = static_cast<std::uint8_t>(view_->data_shards),
                        .parity_shards = static_cast<std::uint8_t>(view_->parity_shards)});
}

void TargetHost::on_request(ShardOperation operation, ShardReplyCallback done, TimePoint now) {
  if (const std::optional<std::uint32_t> other = foreign_group(operation)) {
    ShardReply refusal;
    refusal.result = ShardResult::kInvalid;
    refusal.message =
        str_cat("a block of group ", *other, " by map ", view_->epoch, "; target ",
                target_->index().identity().target_id, " is of group ", view_->group.id);
    metrics_.requests.with({operation_name(operation), shard_result_name(refusal.result)}).add();
    return done(std::move(refusal));
  }
  target_->handle(std::move(operation), std::move(done), now);
}

std::optional<std::uint32_t> TargetHost::foreign_group(const ShardOperation& operation) const {
  if (!view_) return std::nullopt;  // a spare refuses everything
  std::optional<std::uint32_t> found;
  const auto check = [&](const BlockKey& key) {
    const std::optional<std::uint32_t> group = placement_->group_id_of(key);
    if (!found && group != view_->group.id) found = group;
  };
  if (const auto* write = std::get_if<WriteShard>(&operation)) {
    if (const std::optional<BlockKey> key = peek_key(write->shard)) check(*key);
  } else if (const auto* publish = std::get_if<PublishShard>(&operation)) {
    check(publish->key);
  } else if (const auto* read = std::get_if<ReadShard>(&operation)) {
    check(read->key);
  } else if (const auto* query = std::get_if<QueryKeys>(&operation)) {
    for (const BlockKey& key : query->keys) check(key);
  } else if (const auto* touch = std::get_if<TouchKeys>(&operation)) {
    for (const BlockKey& key : touch->keys) check(key);
  } else if (const auto* repair = std::get_if<RepairShard>(&operation)) {
    check(repair->key);
  }
  return found;
}

void TargetHost::turn(TimePoint now) {
  peers_.expire(now);
  // One that the map calls down is not heard by the others: it decides nothing. Nor does one that
  // has yet to let go of the shards of another place.
  if (view_ && view_->own().state != MemberState::kDown && !target_->is_emptying()) {
    resolver_.step(*view_, now);
    evictor_.step(*view_, now);
    rebuilder_.step(*view_, now);
    scrubber_.step(now);
  }
  target_->end_turn(now);
}

TargetStatus TargetHost::status(TimePoint now) const {
  const index::TargetIdentity& identity = target_->index().identity();
  const SlotTable& slots = target_->slots();
  return {.target_id = identity.target_id,
          .io_kind = target_->io_kind(),
          .state = target_->state(),
          .reason = target_->reason(),
          .slot_count = slots.slot_count(),
          .free_slots = slots.free_count(),
          .cooling_slots = slots.cooling_count(),
          .bad_slots = slots.bad_count(),
          .slot_bytes = identity.slot_bytes,
          .published_shards = target_->published_count(),
          .pending_shards = target_->pending().size(),
          .leases = target_->leases().size(),
          .repair_backlog = target_->repair_backlog(),
          .oldest_age_minutes = evictor_.oldest_age_minutes(),
          .minute = target_->minute(now),
          .evict_request = evictor_.done_request(),
          .scrub = scrubber_.progress(),
          .rebuild = rebuilder_.progress()};
}

void TargetHost::report(TimePoint now) const {
  const TargetStatus status = this->status(now);
  const std::string& id = status.target_id;
  const auto set_slots = [&](const char* state, std::uint64_t count) {
    metrics_.slots.with({id, state}).set(static_cast<double>(count));
  };
  set_slots("free", status.free_slots);
  set_slots("cooling", status.cooling_slots);
  set_slots("bad", status.bad_slots);
  set_slots("used",
            status.slot_count - status.free_slots - status.cooling_slots - status.bad_slots);
  for (const TargetState state :
       {TargetState::kServing, TargetState::kReadOnly, TargetState::kFailed})
    metrics_.target_state.with({id, target_state_name(state)}).set(state == status.state ? 1 : 0);
  metrics_.gc_age_seconds.with({id}).set(60.0 * status.oldest_age_minutes);
  metrics_.rebuild_backlog.with({id}).set(static_cast<double>(status.rebuild.backlog));
  metrics_.repair_backlog.with({id}).set(static_cast<double>(status.repair_backlog));
  metrics_.pending_shards.with({id}).set(static_cast<double>(status.pending_shards));
  metrics_.leases.with({id}).set(static_cast<double>(status.leases));
  metrics_.scrub_fraction.with({id}).set(status.scrub.fraction);
  metrics_.rebuild_fraction.with({id}).set(status.rebuild.fraction);
}

}  // namespace millrace::storage::node
