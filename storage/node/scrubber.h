#pragma once

#include <optional>

#include "common/time_point.h"
#include "storage/node/pace.h"
#include "storage/node/settings.h"
#include "storage/node/target.h"

namespace millrace::storage::node {

struct ScrubProgress {
  std::uint64_t request = 0;  ///< the wish that the last pass fulfils or fulfilled; 0: its own
  bool is_running = false;
  double fraction = 0;      ///< of the pass under way, by the place in the order of keys
  std::uint64_t total = 0;  ///< shards when the pass began
  std::uint64_t checked = 0;
  std::uint64_t bad = 0;
  std::uint64_t passes = 0;  ///< finished since the process started
};

/// Reads every stored shard now and then and checks it, so that damage is found while the others
/// can still repair it. Paced. One thread, that of its target.
class Scrubber {
 public:
  Scrubber(Target& target, const TargetSettings& settings, TimePoint now)
      : target_(target),
        settings_(settings),
        pace_(settings.scrub_bytes_per_second),
        next_pass_(now + settings.scrub_start_delay) {}

  void step(TimePoint now);
  /// Begins a pass from the first shard, also when one is under way: people asked, `request` names
  /// the wish. A wish that was heard already does nothing.
  void start(std::uint64_t request, TimePoint now);
  const ScrubProgress& progress() const { return progress_; }

 private:
  void begin(TimePoint now);
  void check(const index::ShardEntry& entry, TimePoint now);

  Target& target_;
  const TargetSettings& settings_;
  Pace pace_;
  TimePoint next_pass_;
  std::optional<BlockKey> after_;
  std::size_t in_flight_ = 0;
  bool is_at_end_ = false;
  ScrubProgress progress_;
};

}  // namespace millrace::storage::node
