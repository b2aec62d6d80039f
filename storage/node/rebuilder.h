#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/time_point.h"
#include "storage/ec/codec.h"
#include "storage/node/node_metrics.h"
#include "storage/node/pace.h"
#include "storage/node/peers.h"
#include "storage/node/rebuild_plan.h"
#include "storage/node/settings.h"
#include "storage/node/target.h"

namespace millrace::storage::node {

struct RebuildProgress {
  bool is_running = false;    ///< the target is being compared with its peers and filled
  double fraction = 0;        ///< of the comparison, by the place in the order of keys
  std::size_t backlog = 0;    ///< blocks known to lack their shard here
  std::uint64_t rebuilt = 0;  ///< since the process started, repairs included
  /// Everything that peers have is here, as compared under the map of this epoch (where the
  /// comparison began); 0: not known yet. What the controller waits for to call the member up
  /// again.
  std::uint64_t complete_at_epoch = 0;
  /// No member was away then; else the comparison is made again when those come back that were.
  bool has_seen_all = false;
};

/// Makes shards again from those of the other members: all that a returning or new member lacks,
/// and single ones that were found to be bad or missing. Paced by the bytes read.
///
/// A shard is written under the generation that its block has; nothing of it shows before it is
/// durable. One thread, that of its target.
class Rebuilder {
 public:
  Rebuilder(Target& target, PeerCalls& peers, const TargetSettings& settings,
            const NodeMetrics& metrics)
      : target_(target),
        peers_(peers),
        settings_(settings),
        metrics_(metrics),
        pace_(settings.rebuild_bytes_per_second),
        queue_(settings.rebuild_queue) {}

  void step(const GroupView& view, TimePoint now);
  RebuildProgress progress() const;

 private:
  struct Page;    // of the comparison with the peers
  struct Survey;  // of one block
  struct Work;    // one block being made again

  void follow_map(const GroupView& view, TimePoint now);
  void start_scan(const GroupView& view);
  void forget_replaced(const GroupView& view);
  bool is_one_back(const GroupView& view) const;
  bool is_doubtful(const GroupView& view, TimePoint now) const;

  void scan_page(const GroupView& view, TimePoint now);
  void merge_page(const std::shared_ptr<Page>& page, TimePoint now);
  void finish_pass(TimePoint now);

  void repair_next(TimePoint now);
  void postpone_repair(const BlockKey& key, TimePoint now);
  void conclude_survey(const std::shared_ptr<Survey>& survey, TimePoint now);
  void check_own(const std::shared_ptr<Survey>& survey, TimePoint now);
  void act(const BlockKey& key, const std::optional<Copy>& own, BlockVerdict verdict,
           const std::vector<Copy>& others, TimePoint now);

  void rebuild(const RebuildItem& item, TimePoint now);
  void read_more(const std::shared_ptr<Work>& work, TimePoint now);
  void on_shard(const std::shared_ptr<Work>& work, std::uint8_t member, const ShardReply& reply,
                TimePoint now);
  void reconstruct(const std::shared_ptr<Work>& work, TimePoint now);
  void finish(const std::shared_ptr<Work>& work, RebuildResult result, TimePoint now);

  Target& target_;
  PeerCalls& peers_;
  const TargetSettings& settings_;
  const NodeMetrics& metrics_;
  Pace pace_;
  std::optional<GroupView> view_;
  std::unique_ptr<const ec::Codec> codec_;

  bool is_scanning_ = false;
  std::uint64_t scan_ = 0;  // its number
  bool is_page_open_ = false;
  bool is_scan_at_end_ = false;
  bool has_failed_ = false;  // in this pass: another one is needed
  std::optional<BlockKey> after_;
  /// Members that were down at some time of this pass, or of the last: what only they have of a
  /// block, so that it could not be made again, comes back with them.
  std::set<std::string> unseen_;
  TimePoint not_before_ = TimePoint::min();
  double fraction_ = 0;
  RebuildQueue queue_;

  struct Postponed {
    TimePoint until;
    BlockKey key;
  };
  std::deque<Postponed> postponed_;  // repairs that could not be decided; in order of time
  std::size_t surveys_ = 0;
  std::size_t works_ = 0;
  std::uint64_t rebuilt_ = 0;
  std::uint64_t scan_epoch_ = 0;  // when the comparison began
  std::uint64_t complete_at_epoch_ = 0;
  TimePoint complete_since_;
};

}  // namespace millrace::storage::node
