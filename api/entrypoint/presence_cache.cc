#include "api/entrypoint/presence_cache.h"

namespace millrace::api::entrypoint {

void PresenceCache::add(const storage::BlockKey& key, TimePoint now) {
  while (!order_.empty() && order_.front().second <= now) drop_oldest();
  const TimePoint until = now + limits_.life;
  TimePoint& known = until_[key];
  if (known == until) return;  // seen twice at one moment: one entry is enough
  known = until;
  order_.emplace_back(key, until);
  while (order_.size() > limits_.keys) drop_oldest();
}

bool PresenceCache::contains(const storage::BlockKey& key, TimePoint now) const {
  const auto it = until_.find(key);
  return it != until_.end() && now < it->second;
}

void PresenceCache::drop_oldest() {
  const auto& [key, until] = order_.front();
  const auto it = until_.find(key);
  if (it != until_.end() && it->second == until) until_.erase(it);
  order_.pop_front();
}

}  // namespace millrace::api::entrypoint
