#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "storage/store/store_context.h"

namespace millrace::storage::store {

/// Remembers which keys were touched lately, so that each is passed on once a minute at most: the
/// order of eviction is good to a minute anyhow. A table of fixed size where a key takes the place
/// of another one with the same slot: forgetting costs one touch too many, never one too few.
class TouchFilter {
 public:
  TouchFilter();
  /// Whether to pass it on. A longer TTL class than last time always passes.
  bool passes(const BlockKey& key, TtlClass ttl, TimePoint now);

 private:
  struct Slot {
    std::uint64_t prefix = 0;
    TimePoint at{};
    TtlClass ttl = TtlClass::kAgent;
    bool is_used = false;
  };
  std::vector<Slot> slots_;
};

/// Collects touches for a moment and sends them to every member that is not down: whoever owns the
/// eviction of a block tomorrow must know today that it was used.
class TouchBatch {
 public:
  explicit TouchBatch(StoreContext& context) : context_(context) {}

  void add(const TouchBlocks& touch, TimePoint now);
  void flush(TimePoint now);

 private:
  using Destination = std::pair<std::string, TtlClass>;

  StoreContext& context_;
  TouchFilter filter_;
  std::map<Destination, std::vector<BlockKey>> waiting_;
  std::size_t waiting_keys_ = 0;
  bool is_timed_ = false;
};

}  // namespace millrace::storage::store
