#include "controller/placement/plain.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>

#include "common/check.h"
#include "common/str_cat.h"

namespace millrace::controller::placement {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

std::vector<int> by_descending_weight(std::span<const double> weights) {
  std::vector<int> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return weights[at(a)] > weights[at(b)]; });
  return order;
}

std::string broken_rule(std::span<const double> loads, const PlainShape& shape) {
  const int experts = static_cast<int>(loads.size());
  if (experts < 1 || shape.group_count < 1 || shape.node_count < 1 || shape.rank_count < 1) {
    return "experts, groups, nodes and ranks must be positive";
  }
  if (shape.slot_count < experts) {
    return str_cat("slot_count is ", shape.slot_count,
                   "; it must be at least the number of experts, ", experts);
  }
  if (shape.slot_count % shape.rank_count != 0) {
    return str_cat("rank_count is ", shape.rank_count, "; it must divide the ", shape.slot_count,
                   " slots");
  }
  if (shape.rank_count % shape.node_count != 0) {
    return str_cat("node_count is ", shape.node_count, "; it must divide the ", shape.rank_count,
                   " ranks");
  }
  if (experts % shape.group_count != 0) {
    return str_cat("group_count is ", shape.group_count, "; it must divide the ", experts,
                   " experts");
  }
  return "";
}

/// The experts of each node, in the order in which the node counts them.
std::vector<std::vector<int>> experts_of_nodes(std::span<const double> loads, int group_count,
                                               int node_count) {
  const std::size_t group_size = loads.size() / at(group_count);
  std::vector<double> group_loads(at(group_count), 0.0);
  for (std::size_t e = 0; e < loads.size(); ++e) group_loads[e / group_size] += loads[e];
  const Packing packing = pack(group_loads, node_count);
  const std::size_t experts_per_node = loads.size() / at(node_count);
  std::vector<std::vector<int>> experts(at(node_count), std::vector<int>(experts_per_node));
  for (std::size_t e = 0; e < loads.size(); ++e) {
    const std::size_t group = e / group_size;
    const std::size_t place = at(packing.place_in_bin[group]) * group_size + e % group_size;
    experts[at(packing.bin_of[group])][place] = static_cast<int>(e);
  }
  return experts;
}

/// Appends the slots of one node.
void plan_node(std::span<const double> loads, const std::vector<int>& experts, int slot_count,
               int rank_count, std::vector<int>& slots) {
  std::vector<double> node_loads;
  node_loads.reserve(experts.size());
  for (const int expert : experts) node_loads.push_back(loads[at(expert)]);
  const Replication copies = replicate(node_loads, slot_count);
  std::vector<double> copy_loads;
  copy_loads.reserve(copies.expert_of.size());
  for (const int e : copies.expert_of) {
    copy_loads.push_back(node_loads[at(e)] / copies.copies[at(e)]);
  }
  const Packing packing = pack(copy_loads, rank_count);
  const std::size_t first = slots.size();
  slots.resize(first + at(slot_count));
  for (std::size_t copy = 0; copy < copy_loads.size(); ++copy) {
    const int place = packing.bin_of[copy] * (slot_count / rank_count) + packing.place_in_bin[copy];
    slots[first + at(place)] = experts[at(copies.expert_of[copy])];
  }
}

}  // namespace

Packing pack(std::span<const double> weights, int bin_count) {
  CHECK(bin_count > 0 && weights.size() % at(bin_count) == 0);
  const int items_per_bin = static_cast<int>(weights.size()) / bin_count;
  Packing packing{std::vector<int>(weights.size()), std::vector<int>(weights.size())};
  if (items_per_bin == 1) {
    std::iota(packing.bin_of.begin(), packing.bin_of.end(), 0);
    return packing;
  }
  std::vector<double> bin_weight(at(bin_count), 0.0);
  std::vector<int> bin_items(at(bin_count), 0);
  for (const int item : by_descending_weight(weights)) {
    int lightest = -1;
    for (int bin = 0; bin < bin_count; ++bin) {
      if (bin_items[at(bin)] == items_per_bin) continue;
      if (lightest < 0 || bin_weight[at(bin)] < bin_weight[at(lightest)]) lightest = bin;
    }
    packing.bin_of[at(item)] = lightest;
    packing.place_in_bin[at(item)] = bin_items[at(lightest)]++;
    bin_weight[at(lightest)] += weights[at(item)];
  }
  return packing;
}

Replication replicate(std::span<const double> loads, int copy_count) {
  const int experts = static_cast<int>(loads.size());
  CHECK(experts > 0 && copy_count >= experts);
  Replication result{std::vector<int>(at(copy_count)), std::vector<int>(at(copy_count), 0),
                     std::vector<int>(loads.size(), 1)};
  std::iota(result.expert_of.begin(), result.expert_of.begin() + experts, 0);
  for (int copy = experts; copy < copy_count; ++copy) {
    int most = 0;
    for (int e = 1; e < experts; ++e) {
      if (loads[at(e)] / result.copies[at(e)] > loads[at(most)] / result.copies[at(most)]) most = e;
    }
    result.expert_of[at(copy)] = most;
    result.copy_index[at(copy)] = result.copies[at(most)]++;
  }
  return result;
}

absl::StatusOr<std::vector<int>> plain_plan(std::span<const double> loads,
                                            const PlainShape& shape) {
  if (const std::string rule = broken_rule(loads, shape); !rule.empty()) {
    return absl::InvalidArgumentError(rule);
  }
  const bool is_hierarchical = shape.group_count % shape.node_count == 0;
  const int nodes = is_hierarchical ? shape.node_count : 1;
  const int groups = is_hierarchical ? shape.group_count : 1;
  std::vector<int> slots;
  slots.reserve(at(shape.slot_count));
  for (const std::vector<int>& experts : experts_of_nodes(loads, groups, nodes)) {
    plan_node(loads, experts, shape.slot_count / nodes, shape.rank_count / nodes, slots);
  }
  return slots;
}

}  // namespace millrace::controller::placement
