#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include "storage/kv/block_key.h"
#include "storage/wire/shard_format.h"

namespace millrace::storage::node {

/// What should be made again, and in which order. Pure.

/// One member's word on a block.
struct Copy {
  std::uint8_t member = 0;
  Generation generation = 0;
  bool is_published = false;
  std::uint32_t age_minutes = 0;  ///< since its last touch, on that member's clock
};

/// Members that have published one generation.
struct Survivors {
  Generation generation = 0;
  std::uint32_t members = 0;  ///< bit i: member i
  int count = 0;
  std::uint32_t age_minutes = 0;  ///< the least of theirs
};
/// The generation that most members have published; of equals the lower. nullopt: none has any.
std::optional<Survivors> most_published(std::span<const Copy> copies);

enum class BlockVerdict {
  kLeave,
  kRebuild,  ///< others have at least k shards of `most_published`, and ours is missing or another
  kPublish,  ///< ours is pending, and they have published it
  kDrop,     ///< ours is of a block that is no more
};

/// What to do about our shard of a block. `own` is what was here before the others were asked;
/// `unseen` counts members that were not or could not be asked.
BlockVerdict judge_block(const std::optional<Copy>& own, std::span<const Copy> others,
                         int data_shards, int unseen);

/// A block whose shard here is to be made again.
struct RebuildItem {
  BlockKey key;
  Survivors survivors;
  bool is_own_bad = false;  ///< there is one, and its bytes are damaged
  int unseen = 0;           ///< members that were away when the survivors were counted
};

/// The most endangered first (fewest survivors), then those used last, then by key. Bounded: when
/// it is full the least urgent is dropped, and has_overflowed() says that there was more.
class RebuildQueue {
 public:
  explicit RebuildQueue(std::size_t capacity) : capacity_(capacity) {}

  void push(const RebuildItem& item);
  std::optional<RebuildItem> pop();
  std::size_t size() const { return items_.size(); }
  bool has_overflowed() const { return has_overflowed_; }
  void clear() {
    items_.clear();
    has_overflowed_ = false;
  }

 private:
  struct Order {
    bool operator()(const RebuildItem& a, const RebuildItem& b) const {
      return std::tie(a.survivors.count, a.survivors.age_minutes, a.key) <
             std::tie(b.survivors.count, b.survivors.age_minutes, b.key);
    }
  };

  const std::size_t capacity_;
  std::set<RebuildItem, Order> items_;
  bool has_overflowed_ = false;
};

}  // namespace millrace::storage::node
