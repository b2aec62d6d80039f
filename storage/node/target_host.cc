#include "storage/node/target_host.h"

#include <utility>

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
  if (!view_) {
    target_->set_place(std::nullopt);
    return;
  }
  target_->set_place(TargetPlace{.group_id = view_->group.id,
                                 .shard_index = view_->own_index,
                                 .data_shards = static_cast<std::uint8_t>(view_->data_shards),
                                 .parity_shards = static_cast<std::uint8_t>(view_->parity_shards)});
}

void TargetHost::turn(TimePoint now) {
  peers_.expire(now);
  // One that the map calls down is not heard by the others: it decides nothing.
  if (view_ && view_->own().state != MemberState::kDown) {
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
