#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"

/// The published expert balancer, as it is: what ours is compared with.
///
/// It looks at loads alone. So it may put two copies of an expert on one rank, and two plans in a
/// row may have nothing in common.
///
/// Source: deepseek-ai/EPLB at d52c72d (algorithm and check vector; written anew). Ties, which
/// there are the sort's affair, go to the lower index.
namespace millrace::controller::placement {

/// For each item the bin it is in and its place there.
struct Packing {
  std::vector<int> bin_of;
  std::vector<int> place_in_bin;
};

/// Items into bins of equally many: by descending weight, each to the lightest bin that has room.
/// One item a bin: identity. CHECKs that the bins divide the items.
Packing pack(std::span<const double> weights, int bin_count);

struct Replication {
  std::vector<int> expert_of;   ///< of each copy: first one of every expert, then the further ones
  std::vector<int> copy_index;  ///< which of its expert's copies it is, from 0
  std::vector<int> copies;      ///< of each expert
};

/// Adds copies one at a time, always of the expert with the largest load per copy. This makes the
/// largest load per copy as small as it can be. CHECKs copy_count >= the number of experts.
Replication replicate(std::span<const double> loads, int copy_count);

struct PlainShape {
  int slot_count = 0;
  int group_count = 1;
  int node_count = 1;
  int rank_count = 1;
};

/// The expert of each slot of one layer: groups onto nodes, copies within nodes, copies onto a
/// node's ranks; without nodes and groups when the nodes do not divide the groups.
/// kInvalidArgument names the rule that a number breaks.
absl::StatusOr<std::vector<int>> plain_plan(std::span<const double> loads, const PlainShape& shape);

}  // namespace millrace::controller::placement
