#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

/// Which prefill instances serve which prompt lengths. Pure.
///
/// A bucket is a range of input lengths, counted from 0 for the shortest; what its edges are is not
/// known here.
namespace millrace::controller::buckets {

struct SplitSettings {
  int bucket_count = 4;
  /// Instances that change their bucket in one round, at most: a moved instance works off what it
  /// has of the old length first.
  int max_moves = 2;
  /// How far the share of demand must be past the point where rounding would move an instance, as
  /// a share of all instances. Keeps the split still while demand trembles around such a point.
  double min_share_change = 0.05;
};

/// kInvalidArgument names the setting: at least one bucket, at least one move a round, a change
/// from 0 to 1.
absl::Status validate(const SplitSettings& settings);

inline constexpr int kNoBucket = -1;

struct PrefillInstance {
  std::string id;
  int bucket = kNoBucket;  ///< kNoBucket: it is new
};

/// Predicted compute that arrived in a round, in nanoseconds, by bucket.
using Demand = std::vector<std::uint64_t>;

struct SplitInput {
  std::vector<PrefillInstance>
      instances;                          ///< those that serve, in an order that is always the same
  std::optional<Demand> demand;           ///< of the last round; nullopt = not known
  std::optional<Demand> previous_demand;  ///< of the last known round before it; nullopt = none
};

/// Why no more moved than did.
enum class SplitOutcome {
  kSettled,      ///< the split is what demand asks for
  kMoved,        ///< instances moved
  kNoTelemetry,  ///< demand is not known; the split stays
  kNoTraffic,    ///< there was none; the split stays
  kSmallChange,  ///< demand has changed too little
  kUnconfirmed,  ///< the round before asked for something else
};
std::string_view to_string(SplitOutcome outcome);

inline constexpr SplitOutcome kAllSplitOutcomes[] = {
    SplitOutcome::kSettled,   SplitOutcome::kMoved,       SplitOutcome::kNoTelemetry,
    SplitOutcome::kNoTraffic, SplitOutcome::kSmallChange, SplitOutcome::kUnconfirmed};

struct BucketMove {
  std::string instance_id;
  int from = 0;
  int to = 0;
  bool operator==(const BucketMove&) const = default;
};

struct Split {
  std::vector<int> bucket_of;     ///< of each instance, in the order of the input
  std::vector<BucketMove> moves;  ///< of instances that had a bucket
  std::vector<int> wanted;  ///< instances of each bucket that demand asks for; empty = unknown
  SplitOutcome outcome = SplitOutcome::kSettled;
  int withheld_moves = 0;  ///< still to do, for the limit of a round
};

/// The split of the next round.
///
/// Demand asks for the numbers of `apportion`. A bucket that has demand and no instance gets one at
/// once. Otherwise an instance moves only if this round and the one before both want it to, and
/// some share is `min_share_change` past the point of rounding; then all moves are made that both
/// rounds want, at most max_moves a round, the largest deficit first. So a constant or an
/// alternating demand comes to rest. Instances without a bucket go where most are missing; that is
/// no move. While nothing is known of demand they go to the bucket with fewest instances.
///
/// Ties go to the lower bucket and to the earlier instance.
///
/// kInvalidArgument: settings; demand of another number of buckets; an instance whose bucket does
/// not exist or whose id is there twice (named).
absl::StatusOr<Split> split_instances(const SplitSettings& settings, const SplitInput& input);

/// The first step of a round alone, for instances that came in the middle of one: the bucket of
/// each instance, in the order of the input. Those that have one keep it. Errors as above.
absl::StatusOr<std::vector<int>> place_new_instances(const SplitSettings& settings,
                                                     const SplitInput& input);

/// Instances of each bucket in proportion to demand, by the largest remainder; each bucket with
/// demand has at least one if there are as many instances, else those with most demand have one.
/// Of all such splits this has the smallest sum of squared distances from the exact proportions.
/// All 0 without demand.
std::vector<int> apportion(std::span<const std::uint64_t> demand, int instance_count);

}  // namespace millrace::controller::buckets
