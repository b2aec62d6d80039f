#include "storage/swa/window_directory.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::storage::swa {

const char* directory_put_name(DirectoryPut put) {
  switch (put) {
    case DirectoryPut::kStored:
      return "stored";
    case DirectoryPut::kStaleOwner:
      return "stale_owner";
    case DirectoryPut::kInvalid:
      return "invalid";
  }
  CHECK(false, "no such end of a put");
}

DirectoryPut WindowDirectory::put(const BlockKey& key, const WindowLocation& at, TimePoint now) {
  advance(now);
  if (at.host_id.empty() || at.host_id.size() > kMaxHostIdBytes ||
      at.address.size() > kMaxAddressBytes) {
    return DirectoryPut::kInvalid;
  }
  if (gone_.contains({at.host_id, at.incarnation})) return DirectoryPut::kStaleOwner;
  replace_owner(at.host_id, at.incarnation);
  if (const auto found = by_key_.find(key); found != by_key_.end()) drop(found->second);
  if (limits_.max_entries == 0) return DirectoryPut::kStored;
  if (entries_.size() >= limits_.max_entries) drop(entries_.begin()->first);
  const Serial serial = ++last_serial_;
  entries_.emplace(serial, Entry{.key = key, .at = at, .expires_at = now_ + limits_.ttl});
  by_key_.emplace(key, serial);
  Owner& owner = owners_[at.host_id];
  owner.incarnation = at.incarnation;
  owner.entries.insert(serial);
  return DirectoryPut::kStored;
}

std::optional<WindowLocation> WindowDirectory::get(const BlockKey& key, TimePoint now) {
  advance(now);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  return entries_.at(found->second).at;
}

void WindowDirectory::advance(TimePoint now) {
  now_ = std::max(now_, now);
  while (!entries_.empty() && entries_.begin()->second.expires_at <= now_) {
    drop(entries_.begin()->first);
  }
  while (!gone_until_.empty() && gone_until_.front().first <= now_) {
    gone_.erase(gone_until_.front().second);
    gone_until_.pop_front();
  }
}

/// From now on `incarnation` is the host's pool. Another one that has entries is gone, for as long
/// as an entry of it could be on its way.
void WindowDirectory::replace_owner(const std::string& host_id, std::uint64_t incarnation) {
  const auto owner = owners_.find(host_id);
  if (owner == owners_.end() || owner->second.incarnation == incarnation) return;
  const Incarnation old{host_id, owner->second.incarnation};
  const std::set<Serial> entries = owner->second.entries;
  for (const Serial serial : entries) drop(serial);
  if (limits_.max_gone_owners == 0) return;
  if (gone_until_.size() >= limits_.max_gone_owners) {
    gone_.erase(gone_until_.front().second);
    gone_until_.pop_front();
  }
  gone_.insert(old);
  gone_until_.emplace_back(now_ + limits_.ttl, old);
}

void WindowDirectory::drop(Serial serial) {
  const auto entry = entries_.extract(serial);
  CHECK(!entry.empty());
  by_key_.erase(entry.mapped().key);
  const auto owner = owners_.find(entry.mapped().at.host_id);
  owner->second.entries.erase(serial);
  if (owner->second.entries.empty()) owners_.erase(owner);
}

}  // namespace millrace::storage::swa
