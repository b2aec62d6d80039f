#pragma once

#include <span>
#include <vector>

#include "controller/placement/shape.h"

namespace millrace::controller::placement {

/// The planned expert of each slot of one layer, laid out so that little moves: groups of experts
/// stay on their nodes, packed ranks go to the ranks that have most of them, and within a rank an
/// expert keeps its slot. Arguments have been validated by plan_experts.
///
/// loads  [expert], not all 0
std::vector<int> plan_slots(const ExpertShape& shape, double balance_target,
                            std::span<const double> loads, const Placement& current,
                            int layer_index);

}  // namespace millrace::controller::placement
