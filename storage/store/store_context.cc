#include "storage/store/store_context.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace millrace::storage::store {
namespace {

/// Time for requests that nobody waits for.
constexpr std::chrono::seconds kErrandTime{10};
/// A map that was asked for and has not come is asked for again so much later.
constexpr std::chrono::seconds kMapRetryTime{1};

}  // namespace

std::string StoreContext::node_of(const StorageMap& of_map, const std::string& target_id) {
  const TargetEntry* target = of_map.find_target(target_id);
  return target == nullptr ? target_id : target->node_id;
}

void StoreContext::send(const StorageMap& of_map, const std::string& target_id,
                        ShardOperation operation, TimePoint deadline, TimePoint now,
                        Outstanding note) {
  const RequestId id = next_id();
  note.node_id = node_of(of_map, target_id);
  note.sent_at = now;
  outstanding_.emplace(id, std::move(note));
  // 0 would mean "overdue" before it is sent.
  const auto left = std::max(std::chrono::milliseconds(1),
                             std::chrono::ceil<std::chrono::milliseconds>(deadline - now));
  actions.sends.push_back(SendShard{.request_id = id,
                                    .node_address = std::string(of_map.address_of(target_id)),
                                    .request = {.cluster_id = of_map.cluster_id,
                                                .map_epoch = of_map.epoch,
                                                .target_id = target_id,
                                                .operation = std::move(operation),
                                                .deadline = left}});
}

void StoreContext::send_errand(const StorageMap& of_map, const std::string& target_id,
                               ShardOperation operation, TimePoint now) {
  send(of_map, target_id, std::move(operation), now + kErrandTime, now, {});
}

void StoreContext::send_repairs(const StorageMap& of_map, const Group& group, MemberMask members,
                                const BlockKey& key, TimePoint now) {
  for (; members != 0; members &= members - 1) {
    const auto member = static_cast<std::size_t>(std::countr_zero(members));
    send_errand(of_map, group.members[member].target_id, RepairShard{key}, now);
    ++counters.repairs;
  }
}

std::optional<Outstanding> StoreContext::take(RequestId id) {
  const auto found = outstanding_.find(id);
  if (found == outstanding_.end()) return std::nullopt;
  std::optional<Outstanding> note(std::move(found->second));
  outstanding_.erase(found);
  return note;
}

void StoreContext::note_epoch(std::uint64_t epoch, TimePoint now) {
  if (map == nullptr || epoch <= map->epoch) return;
  if (epoch <= wanted_epoch_ && now < ask_again_at_) return;
  wanted_epoch_ = epoch;
  ask_again_at_ = now + kMapRetryTime;
  actions.maps.push_back(FetchMap{epoch});
}

void StoreContext::set_timer(TimePoint at, TimerKind kind, std::uint64_t subject) {
  timers_.push({.at = at, .sequence = ++last_timer_, .kind = kind, .subject = subject});
}

std::optional<TimePoint> StoreContext::next_timer() const {
  if (timers_.empty()) return std::nullopt;
  return timers_.top().at;
}

std::optional<Timer> StoreContext::take_due(TimePoint now) {
  if (timers_.empty() || timers_.top().at > now) return std::nullopt;
  const Timer timer = timers_.top();
  timers_.pop();
  return timer;
}

}  // namespace millrace::storage::store
