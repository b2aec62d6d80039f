#pragma once

#include <cstddef>
#include <unordered_set>

#include "common/time_point.h"
#include "storage/node/node_metrics.h"
#include "storage/node/peers.h"
#include "storage/node/settings.h"
#include "storage/node/target.h"

namespace millrace::storage::node {

enum class PendingVerdict { kPublish, kDrop, kWait };

/// What becomes of a shard whose publication was never heard of. Of the group's other members
/// `asked` are live; `answered` of them said what they have, and `published` have published that
/// very generation. `others` counts those that are down as well.
///
/// A write that was acknowledged was published by all but at most `parity_shards` members, so that
/// silence of no more than that many proves that there was none.
PendingVerdict judge_pending(int others, int asked, int answered, int published, int parity_shards);

/// Finds out, by asking the peers, whether shards that stayed unpublished for too long were
/// published elsewhere. One thread, that of its target.
class PendingResolver {
 public:
  PendingResolver(Target& target, PeerCalls& peers, const TargetSettings& settings,
                  const NodeMetrics& metrics)
      : target_(target), peers_(peers), settings_(settings), metrics_(metrics) {}

  void step(const GroupView& view, TimePoint now);

 private:
  struct Inquiry;
  void ask(const GroupView& view, const BlockKey& key, Generation generation, TimePoint now);
  void conclude(const Inquiry& inquiry, TimePoint now);

  Target& target_;
  PeerCalls& peers_;
  const TargetSettings& settings_;
  const NodeMetrics& metrics_;
  TimePoint next_look_ = TimePoint::min();
  std::unordered_set<BlockKey, BlockKeyHash> asked_;
};

/// The entry of exactly that key in the answer to ListShards{key_before(key), limit 1}; nullptr:
/// there is none.
const ListedShard* listed_as(const ShardReply& reply, const BlockKey& key);
/// That question.
ListShards list_exactly(const BlockKey& key);

}  // namespace millrace::storage::node
