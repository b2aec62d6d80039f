#include "storage/node/rebuild_plan.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace millrace::storage::node {

std::optional<Survivors> most_published(std::span<const Copy> copies) {
  std::map<Generation, Survivors> by_generation;
  for (const Copy& copy : copies) {
    if (!copy.is_published) continue;
    Survivors& survivors = by_generation[copy.generation];
    survivors.age_minutes =
        survivors.count == 0 ? copy.age_minutes : std::min(survivors.age_minutes, copy.age_minutes);
    survivors.generation = copy.generation;
    survivors.members |= std::uint32_t{1} << copy.member;
    ++survivors.count;
  }
  std::optional<Survivors> best;
  for (const auto& [generation, survivors] : by_generation) {
    if (!best || survivors.count > best->count) best = survivors;
  }
  return best;
}

BlockVerdict judge_block(const std::optional<Copy>& own, std::span<const Copy> others,
                         int data_shards, int unseen) {
  const std::optional<Survivors> best = most_published(others);
  const bool is_readable = best && best->count >= data_shards;
  if (!own) return is_readable ? BlockVerdict::kRebuild : BlockVerdict::kLeave;
  if (!own->is_published) {
    if (best && best->generation == own->generation) return BlockVerdict::kPublish;
    return is_readable ? BlockVerdict::kRebuild : BlockVerdict::kLeave;
  }
  if (is_readable && best->generation != own->generation) return BlockVerdict::kRebuild;
  // Pending ones count as well: their publication may be on its way.
  const auto same = std::count_if(others.begin(), others.end(), [&](const Copy& copy) {
    return copy.generation == own->generation;
  });
  return same + 1 + unseen < data_shards ? BlockVerdict::kDrop : BlockVerdict::kLeave;
}

void RebuildQueue::push(const RebuildItem& item) {
  items_.insert(item);
  if (items_.size() <= capacity_) return;
  items_.erase(std::prev(items_.end()));
  has_overflowed_ = true;
}

std::optional<RebuildItem> RebuildQueue::pop() {
  if (items_.empty()) return std::nullopt;
  const RebuildItem item = *items_.begin();
  items_.erase(items_.begin());
  return item;
}

}  // namespace millrace::storage::node
