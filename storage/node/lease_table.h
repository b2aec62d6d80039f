#pragma once

#include <algorithm>
#include <cstddef>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/time_point.h"
#include "storage/kv/block_key.h"

namespace millrace::storage::node {

/// Which keys are promised to readers, and until when. Bounded. Pure; one thread.
class LeaseTable {
 public:
  explicit LeaseTable(std::size_t capacity) : capacity_(capacity) {}

  /// Leases the key until at least then; a longer lease that it has stays. False: the table is
  /// full.
  [[nodiscard]] bool grant(const BlockKey& key, TimePoint until) {
    const auto found = leases_.find(key);
    if (found != leases_.end()) {
      found->second = std::max(found->second, until);
      return true;
    }
    if (leases_.size() >= capacity_) return false;
    leases_.emplace(key, until);
    ends_.push({until, key});
    return true;
  }

  bool is_leased(const BlockKey& key, TimePoint now) const {
    const auto found = leases_.find(key);
    return found != leases_.end() && found->second > now;
  }

  /// Forgets leases that are over and returns their keys.
  std::vector<BlockKey> expire(TimePoint now) {
    std::vector<BlockKey> over;
    while (!ends_.empty() && ends_.top().until <= now) {
      const BlockKey key = ends_.top().key;
      ends_.pop();
      const auto found = leases_.find(key);
      if (found->second > now) {
        ends_.push({found->second, key});  // it was made longer meanwhile
      } else {
        leases_.erase(found);
        over.push_back(key);
      }
    }
    return over;
  }

  std::size_t size() const { return leases_.size(); }

 private:
  struct End {
    TimePoint until;
    BlockKey key;
    bool operator<(const End& other) const { return until > other.until; }  // earliest on top
  };

  const std::size_t capacity_;
  std::unordered_map<BlockKey, TimePoint, BlockKeyHash> leases_;
  std::priority_queue<End> ends_;  // one for each lease
};

}  // namespace millrace::storage::node
