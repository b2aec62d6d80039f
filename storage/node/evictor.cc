#include "storage/node/evictor.h"

#include <algorithm>
#include <vector>

namespace millrace::storage::node {
namespace {

constexpr std::size_t kPage = 128;   // shards looked at a time
constexpr int kTtlPagesPerStep = 2;  // between two TTLs there may be millions: no haste
constexpr int kSpacePagesPerStep = 8;
constexpr auto kStepPause = std::chrono::milliseconds(5);  // requests come first
constexpr auto kNothing = std::nullopt;                    // it stays

}  // namespace

std::optional<EvictReason> judge_eviction(const EvictionQuestion& question,
                                          const kv::TtlPolicy& ttl,
                                          std::uint32_t orphan_slack_minutes) {
  const bool is_expired =
      kv::is_expired(question.touch_minute, question.ttl, question.now_minute, ttl);
  if (question.is_owner) {
    if (is_expired) return EvictReason::kTtl;
    if (!question.is_space_wanted) return kNothing;
    return question.is_emergency ? EvictReason::kEmergency : EvictReason::kWatermark;
  }
  const std::uint32_t slack = std::min(orphan_slack_minutes, question.now_minute);
  if (kv::is_expired(question.touch_minute, question.ttl, question.now_minute - slack, ttl))
    return EvictReason::kOrphan;
  if (question.is_emergency && question.is_space_wanted) return EvictReason::kEmergency;
  return kNothing;
}

std::uint64_t Evictor::wanted() const {
  const SlotTable& slots = target_.slots();
  const std::uint64_t leaving = slots.cooling_count() + target_.evicting_count();
  const std::uint64_t by_marks =
      kv::slots_to_free(slots.used_count(), leaving, slots.slot_count(), settings_.watermarks);
  if (!wish_) return by_marks;
  const std::uint64_t staying = slots.used_count() - std::min(slots.used_count(), leaving);
  const auto allowed =
      static_cast<std::uint64_t>(wish_->fraction * static_cast<double>(slots.slot_count()));
  return std::max(by_marks, staying - std::min(staying, allowed));
}

void Evictor::evict_to(std::uint64_t request, double fraction, TimePoint now) {
  if (request <= done_request_ || (wish_ && request <= wish_->request)) return;
  wish_ = {request, std::clamp(fraction, 0.0, 1.0)};
  phase_ = Phase::kSpace;
  after_.reset();
  not_before_ = now;
}

void Evictor::end_wish() {
  if (!wish_) return;
  done_request_ = wish_->request;
  wish_.reset();
}

bool Evictor::is_emergency() const {
  const SlotTable& slots = target_.slots();
  return kv::is_emergency(slots.used_count(), slots.slot_count(), settings_.watermarks);
}

void Evictor::next_phase(TimePoint now) {
  after_.reset();
  if (phase_ == Phase::kTtl) {
    phase_ = Phase::kSpace;
  } else {
    end_wish();
    phase_ = Phase::kTtl;
    not_before_ = now + settings_.gc_interval;
  }
}

void Evictor::step(const GroupView& view, TimePoint now) {
  if (now < not_before_ || target_.state() != TargetState::kServing) return;
  const int pages = phase_ == Phase::kTtl ? kTtlPagesPerStep : kSpacePagesPerStep;
  for (int page = 0; page < pages && look_at_page(view, now); ++page) {
  }
  not_before_ = std::max(not_before_, now + kStepPause);
}

/// False: enough for this step.
bool Evictor::look_at_page(const GroupView& view, TimePoint now) {
  if (leaving_.size() >= settings_.max_evictions) return false;
  if (phase_ == Phase::kSpace && (wanted() == 0 || !(view.is_owner() || is_emergency()))) {
    next_phase(now);
    return false;
  }
  const auto entries = target_.index().oldest(after_, kPage);
  if (!entries.ok()) {
    not_before_ = now + settings_.gc_interval;
    return false;
  }
  const std::uint32_t minute = target_.minute(now);
  if (!after_) {
    oldest_age_minutes_ =
        entries->empty() ? 0 : minute - std::min(minute, entries->front().record.touch_minute);
  }
  const std::uint32_t shortest =
      std::min(settings_.ttl.agent_minutes, settings_.ttl.chatbot_minutes);
  for (const index::ShardEntry& entry : *entries) {
    if (leaving_.size() >= settings_.max_evictions) return false;
    const bool is_young = minute < shortest || entry.record.touch_minute > minute - shortest;
    if (phase_ == Phase::kTtl && is_young) {
      next_phase(now);
      return true;
    }
    if (!consider(view, entry, now)) {
      next_phase(now);
      return true;
    }
    after_ = entry;
  }
  if (entries->size() < kPage) {
    next_phase(now);
    return phase_ == Phase::kSpace;
  }
  return true;
}

/// False: no more of this phase.
bool Evictor::consider(const GroupView& view, const index::ShardEntry& entry, TimePoint now) {
  const bool is_space_wanted = phase_ == Phase::kSpace && wanted() > 0;
  if (phase_ == Phase::kSpace && !is_space_wanted) return false;
  const std::optional<EvictReason> reason =
      judge_eviction({.touch_minute = entry.record.touch_minute,
                      .ttl = entry.record.ttl,
                      .now_minute = target_.minute(now),
                      .is_owner = view.is_owner(),
                      .is_space_wanted = is_space_wanted,
                      .is_emergency = is_emergency()},
                     settings_.ttl, settings_.orphan_slack_minutes);
  if (reason && !target_.is_evicting(entry.key) && target_.begin_eviction(entry.key, now))
    start(view, entry, *reason, now);
  return true;
}

void Evictor::start(const GroupView& view, const index::ShardEntry& entry, EvictReason reason,
                    TimePoint now) {
  const BlockKey key = entry.key;
  const Generation generation = entry.record.generation;
  const std::vector<std::uint8_t> live =
      view.is_owner() ? view.live_others() : std::vector<std::uint8_t>();
  leaving_[key] = {generation, reason, static_cast<int>(live.size())};
  for (const std::uint8_t member : live) {
    peers_.ask(
        view.group.members[member].target_id, DropShard{key, generation},
        [this, key](const ShardReply& reply) {
          if (reply.result != ShardResult::kOk) metrics_.lost_tombstones.add();
          const auto found = leaving_.find(key);
          if (found == leaving_.end() || --found->second.outstanding > 0) return;
          const Leaving leaving = found->second;
          leaving_.erase(found);
          target_.evict(key, leaving.generation, leaving.reason);
        },
        now);
  }
  if (live.empty() || reason == EvictReason::kEmergency) {
    leaving_.erase(key);  // no time to wait for answers
    target_.evict(key, generation, reason);
  }
}

bool Evictor::evict_block(const GroupView& view, const BlockKey& key, TimePoint now) {
  const auto record = target_.index().find(key);
  if (!view.is_owner() || !record.ok() || !*record ||
      (*record)->state != index::ShardState::kPublished || target_.is_evicting(key) ||
      leaving_.size() >= settings_.max_evictions || !target_.begin_eviction(key, now))
    return false;
  start(view, {key, **record}, EvictReason::kWatermark, now);
  return true;
}

}  // namespace millrace::storage::node
