#pragma once

#include <optional>
#include <unordered_map>

#include "common/time_point.h"
#include "storage/node/node_metrics.h"
#include "storage/node/peers.h"
#include "storage/node/settings.h"
#include "storage/node/target.h"

namespace millrace::storage::node {

/// What the rules of eviction say of one shard. Pure.
struct EvictionQuestion {
  std::uint32_t touch_minute = 0;
  TtlClass ttl = TtlClass::kAgent;
  std::uint32_t now_minute = 0;
  bool is_owner = false;
  bool is_space_wanted = false;  ///< usage is above where eviction stops
  bool is_emergency = false;
};
/// nullopt: it stays.
std::optional<EvictReason> judge_eviction(const EvictionQuestion& question,
                                          const kv::TtlPolicy& ttl,
                                          std::uint32_t orphan_slack_minutes);

/// Lets go of blocks: those whose time is over, then, above the start mark, the oldest down to the
/// stop mark.
///
/// The group's owner decides for all. It tells the other members first and erases its own shard
/// when they have answered: until then its record is the memory of what is to be told. A member
/// that did not answer in time is counted; it notices by itself when the shard is an orphan.
/// One thread, that of its target.
class Evictor {
 public:
  Evictor(Target& target, PeerCalls& peers, const TargetSettings& settings,
          const NodeMetrics& metrics)
      : target_(target), peers_(peers), settings_(settings), metrics_(metrics) {}

  void step(const GroupView& view, TimePoint now);
  /// Evictions that wait for peers.
  std::size_t in_flight() const { return leaving_.size(); }
  /// Of the oldest published shard, in minutes, as last looked at; 0 when there is none.
  std::uint32_t oldest_age_minutes() const { return oldest_age_minutes_; }
  /// Lets go of one block that this target owns, for a reason of others. False: leased, not there,
  /// or this target is not the owner.
  bool evict_block(const GroupView& view, const BlockKey& key, TimePoint now);
  /// People asked for space: evicts, in the usual order, until only this fraction of the slots is
  /// used; leased blocks stay. `request` names the wish.
  void evict_to(std::uint64_t request, double fraction, TimePoint now);
  /// The last wish that was carried out, as far as this target owns; 0: none, or shards are on
  /// their way out.
  std::uint64_t done_request() const { return leaving_.empty() ? done_request_ : 0; }

 private:
  /// A pass looks at shards from the oldest on: first for those whose time is over, then for space.
  enum class Phase { kTtl, kSpace };

  bool look_at_page(const GroupView& view, TimePoint now);
  bool consider(const GroupView& view, const index::ShardEntry& entry, TimePoint now);
  void start(const GroupView& view, const index::ShardEntry& entry, EvictReason reason,
             TimePoint now);
  std::uint64_t wanted() const;
  void end_wish();
  bool is_emergency() const;
  void next_phase(TimePoint now);

  struct Wish {
    std::uint64_t request = 0;
    double fraction = 0;
  };
  struct Leaving {
    Generation generation = 0;
    EvictReason reason = EvictReason::kTtl;
    int outstanding = 0;
  };

  Target& target_;
  PeerCalls& peers_;
  const TargetSettings& settings_;
  const NodeMetrics& metrics_;
  Phase phase_ = Phase::kTtl;
  std::optional<index::ShardEntry> after_;
  TimePoint not_before_ = TimePoint::min();
  std::uint32_t oldest_age_minutes_ = 0;
  std::optional<Wish> wish_;
  std::uint64_t done_request_ = 0;
  std::unordered_map<BlockKey, Leaving, BlockKeyHash> leaving_;
};

}  // namespace millrace::storage::node
