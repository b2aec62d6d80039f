// The part of Target that keeps its shards and its place in agreement.

#include <utility>

#include "common/str_cat.h"
#include "storage/node/target.h"

namespace millrace::storage::node {
namespace {

using index::ShardPlace;
using index::StoredPlace;

constexpr std::size_t kPage = 1024;  // shards that go in one turn

}  // namespace

void Target::set_place(const std::optional<ShardPlace>& place) {
  if (place == place_) return;
  place_ = place;
  // What is being made again is a shard of the place that was.
  for (auto& [key, rebuilding] : rebuilding_) rebuilding.is_dropped = true;
  const std::optional<StoredPlace> stored = index_.stored_place();
  is_emptying_ = place_ && stored && stored->place != *place_;
  emptied_to_.reset();
  if (place_ && !stored) (void)store_place({.place = *place_});
}

bool Target::is_compared() const {
  const std::optional<StoredPlace> stored = index_.stored_place();
  return stored && stored->place == place_ && stored->is_compared;
}

void Target::set_compared(bool is_compared) {
  const std::optional<StoredPlace> stored = index_.stored_place();
  if (stored && stored->place == place_ && stored->is_compared != is_compared)
    (void)store_place({.place = *place_, .is_compared = is_compared});
}

bool Target::store_place(const StoredPlace& place) {
  if (state_ != TargetState::kServing) return false;
  const absl::Status status = index_.store_place(place);
  if (!status.ok()) (void)index_error(status);
  return status.ok();
}

void Target::answer_while_emptying(const ShardOperation& operation, const ShardReplyCallback& done,
                                   TimePoint now) const {
  ShardReply answer;
  if (std::holds_alternative<ListShards>(operation)) {
    // That it has nothing is what whoever compares a group has to know, and need not wait for.
    answer.result = ShardResult::kOk;
    answer.is_end = true;
    answer.minute = minute(now);
  } else {
    answer.result = ShardResult::kBusy;
    answer.message = "this target lets go of its shards of another place first";
  }
  done(std::move(answer));
}

/// A page of what is of another place; round after round, until nothing is left or on its way.
void Target::empty_some(TimePoint now) {
  if (!is_emptying_ || state_ != TargetState::kServing) return;
  const StoredPlace stored = *index_.stored_place();
  if (stored.is_compared && !store_place({.place = stored.place})) return;
  const auto page = index_.list(emptied_to_, kPage);
  if (!page.ok()) return (void)index_error(page.status());
  if (page->empty() && !emptied_to_ && writing_.empty()) {
    is_emptying_ = !store_place({.place = *place_});
    return;
  }
  for (const index::ShardEntry& entry : *page) {
    if (leases_.is_leased(entry.key, now)) continue;  // for the next round
    metrics_.evictions.with({evict_reason_name(EvictReason::kDisplaced)}).add();
    stage_erase(entry.key, entry.record, [](const absl::Status&) {});
  }
  emptied_to_ = page->size() < kPage ? std::nullopt : std::optional(page->back().key);
}

}  // namespace millrace::storage::node
