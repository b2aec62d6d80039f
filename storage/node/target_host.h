#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/time_point.h"
#include "storage/map/storage_map.h"
#include "storage/node/evictor.h"
#include "storage/node/node_metrics.h"
#include "storage/node/peers.h"
#include "storage/node/pending_resolver.h"
#include "storage/node/rebuilder.h"
#include "storage/node/scrubber.h"
#include "storage/node/settings.h"
#include "storage/node/target.h"

namespace millrace::storage::node {

/// What people and the controller are told of a target.
struct TargetStatus {
  std::string target_id;
  std::string io_kind;
  TargetState state = TargetState::kServing;
  std::string reason;  ///< why it is not serving
  std::uint64_t slot_count = 0;
  std::uint64_t free_slots = 0;
  std::uint64_t cooling_slots = 0;
  std::uint64_t bad_slots = 0;
  std::uint32_t slot_bytes = 0;
  std::uint64_t published_shards = 0;
  std::size_t pending_shards = 0;
  std::size_t leases = 0;
  std::size_t repair_backlog = 0;
  std::uint32_t oldest_age_minutes = 0;
  std::uint32_t minute = 0;
  std::uint64_t evict_request = 0;  ///< the last one carried out
  ScrubProgress scrub;
  RebuildProgress rebuild;
};

/// One target with all that works on it: requests, eviction, scrub, rebuild. Events go in, turn()
/// does what is due. No thread, no clock, no network of its own: a node drives it from a thread, a
/// simulation from a loop.
class TargetHost {
 public:
  /// `link` and `metrics` outlive it.
  TargetHost(std::unique_ptr<Target> target, const TargetSettings& settings, PeerLink& link,
             const NodeMetrics& metrics, TimePoint now);
  TargetHost(const TargetHost&) = delete;
  TargetHost& operator=(const TargetHost&) = delete;

  void set_map(const StorageMap& map);
  /// kInvalid, naming both groups: a block that the map gives to another group than the target's.
  /// It would be stored, or missed, where nobody looks for it. Not so for what ends a block: a
  /// group that has grown out of it lets go of it as before.
  void on_request(ShardOperation operation, ShardReplyCallback done, TimePoint now);
  void on_completions(std::vector<disk::SlotCompletion> completions, TimePoint now) {
    target_->on_completions(std::move(completions), now);
  }
  void on_peer_reply(std::uint64_t call_id, ShardReply reply) {
    peers_.on_reply(call_id, std::move(reply));
  }
  /// Call after each batch of events, and at least a few times a second.
  void turn(TimePoint now);

  /// See Scrubber::start, Evictor::evict_to and evict_block.
  void start_scrub(std::uint64_t request, TimePoint now) { scrubber_.start(request, now); }
  void evict_to(std::uint64_t request, double fraction, TimePoint now) {
    evictor_.evict_to(request, fraction, now);
  }
  bool evict_block(const BlockKey& key, TimePoint now) {
    return view_ && evictor_.evict_block(*view_, key, now);
  }

  /// Nothing is on its way to or from the medium.
  bool is_idle() const { return target_->io_in_flight() == 0; }
  const Target& target() const { return *target_; }
  TargetStatus status(TimePoint now) const;
  /// Sets the gauges of this target.
  void report(TimePoint now) const;

 private:
  /// Of the first block of the operation that is of another group.
  std::optional<std::uint32_t> foreign_group(const ShardOperation& operation) const;

  const TargetSettings settings_;
  const NodeMetrics& metrics_;
  const std::unique_ptr<Target> target_;
  PeerCalls peers_;
  PendingResolver resolver_;
  Evictor evictor_;
  Scrubber scrubber_;
  Rebuilder rebuilder_;
  std::optional<GroupView> view_;
  std::optional<Placement> placement_;
};

}  // namespace millrace::storage::node
