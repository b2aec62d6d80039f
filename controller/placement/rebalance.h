#pragma once

#include <span>
#include <vector>

namespace millrace::controller::placement {

/// The experts of one rank, in no particular order.
using RankExperts = std::vector<int>;

/// Ranks that share a set of experts: all ranks of an instance, or those of a node.
struct RankGroup {
  std::span<const double> loads;  ///< of each expert, finite and >= 0
  int rank_count = 0;
  int slots_per_rank = 0;
};

struct Effort {
  /// max/mean at which nothing more is moved.
  double balance_target = 1.0;
  /// A slot changes hands only if the largest load per copy is above (1 + this) times what the
  /// giver's would become. 0 makes the largest load per copy as small as it can be.
  double copy_hysteresis = 0.0;
};

/// Fills all slots of all ranks, starting from what ranks have and moving little.
///
/// Every expert gets a copy; no rank has two copies of one unless it has more slots than there are
/// experts (then all ranks have the same, and the load is even). A copy is taken from the heaviest
/// rank that has it, a new one goes to the lightest that has room and none; then copies of the
/// heaviest rank are exchanged for lighter ones until the target is met or no exchange helps.
/// From empty ranks this is longest-first packing and exchanges.
///
/// current  one entry a rank; experts out of range and doubles are ignored, a rank may have more
///          than its slots now. CHECKs that the slots suffice for the experts.
///
/// Equal scores go to the lower rank, then the lower expert.
std::vector<RankExperts> rebalance(const RankGroup& group, std::span<const RankExperts> current,
                                   const Effort& effort);

/// Largest rank load over the mean; a rank's load is the sum of load / copies of its experts,
/// since dispatch deals an expert's tokens evenly to its copies. 1 when there is no load.
double imbalance(const RankGroup& group, std::span<const RankExperts> ranks);

}  // namespace millrace::controller::placement
