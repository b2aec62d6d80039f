#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <unordered_map>
#include <utility>

#include "common/time_point.h"
#include "storage/kv/block_key.h"

namespace millrace::api::entrypoint {

/// Blocks that were seen stored a moment ago, so that the next turn of a conversation asks for
/// fewer of them. Only what exists is kept: a block that was missing may be stored by now. Pure.
class PresenceCache {
 public:
  struct Limits {
    std::size_t keys = 65'536;  ///< when it is full, the oldest goes
    std::chrono::milliseconds life{10'000};
  };

  explicit PresenceCache(const Limits& limits) : limits_(limits) {}

  void add(const storage::BlockKey& key, TimePoint now);
  bool contains(const storage::BlockKey& key, TimePoint now) const;
  std::size_t size() const { return until_.size(); }

 private:
  void drop_oldest();

  const Limits limits_;
  std::unordered_map<storage::BlockKey, TimePoint, storage::BlockKeyHash> until_;
  /// In order of time. An entry that was renewed since has an older time here than in until_.
  std::deque<std::pair<storage::BlockKey, TimePoint>> order_;
};

}  // namespace millrace::api::entrypoint
