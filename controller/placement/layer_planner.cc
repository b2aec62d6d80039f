#include "controller/placement/layer_planner.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>

#include "controller/placement/assignment.h"
#include "controller/placement/plain.h"
#include "controller/placement/rebalance.h"

namespace millrace::controller::placement {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// max/mean for which a plan that moves more is preferred.
constexpr double kWorthMoving = 0.0005;

/// Reluctance to change how many copies experts have, tried in this order.
constexpr double kCopyHysteresis[] = {0.5, 0.2, 0.05, 0.0};

/// A rank of the current placement, in slot order.
using RankSlots = std::span<const int>;

RankSlots slots_of(const Placement& current, int layer, int rank) {
  return current.layer(layer).subspan(at(rank) * at(current.slots_per_rank),
                                      at(current.slots_per_rank));
}

bool contains(std::span<const int> values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

/// How many of the experts would stay in their slots on this rank.
int stays_on(const RankExperts& experts, RankSlots slots) {
  int stays = 0;
  const RankSlots usable = slots.first(std::min(slots.size(), experts.size()));
  for (const int expert : experts) stays += contains(usable, expert) ? 1 : 0;
  return stays;
}

/// The experts of a rank in slots: those it has keep theirs, the others fill what is left, both
/// ascending.
std::vector<int> in_slots(RankExperts experts, RankSlots slots) {
  std::vector<int> placed(experts.size(), kEmptySlot);
  std::sort(experts.begin(), experts.end());
  for (std::size_t slot = 0; slot < std::min(slots.size(), placed.size()); ++slot) {
    const auto found = std::find(experts.begin(), experts.end(), slots[slot]);
    if (found == experts.end()) continue;
    placed[slot] = slots[slot];
    experts.erase(found);
  }
  auto next = experts.begin();
  for (int& slot : placed) {
    if (slot == kEmptySlot) slot = *next++;
  }
  return placed;
}

/// Ranks first_rank... of a layer that share a set of experts, numbered anew from 0.
struct Domain {
  int first_rank = 0;
  std::vector<int> experts;          ///< ascending
  std::vector<double> loads;         ///< of these
  std::vector<RankSlots> slots;      ///< of each rank, with the model's expert numbers
  std::vector<RankExperts> current;  ///< of each rank, with the domain's numbers
};

Domain domain_of(const ExpertShape& shape, std::span<const double> loads, const Placement& current,
                 int layer, std::pair<int, int> ranks, std::vector<int> experts) {
  Domain domain{ranks.first, std::move(experts), {}, {}, {}};
  std::vector<int> number(at(shape.expert_count), -1);
  for (const int expert : domain.experts) {
    number[at(expert)] = static_cast<int>(domain.loads.size());
    domain.loads.push_back(loads[at(expert)]);
  }
  for (int rank = ranks.first; rank < ranks.second; ++rank) {
    domain.slots.push_back(slots_of(current, layer, rank));
    RankExperts& here = domain.current.emplace_back();
    for (const int expert : domain.slots.back()) {
      if (expert != kEmptySlot && number[at(expert)] >= 0) here.push_back(number[at(expert)]);
    }
  }
  return domain;
}

/// Gives each planned rank to the rank that has most of it, so that the sum of what stays is the
/// largest; among equals, so that most ranks are themselves.
std::vector<RankExperts> aligned(std::vector<RankExperts> planned, const Domain& domain) {
  const int count = static_cast<int>(planned.size());
  std::vector<std::int64_t> costs;
  costs.reserve(planned.size() * planned.size());
  std::vector<int> originals;
  for (const RankExperts& experts : planned) {
    originals.clear();
    for (const int expert : experts) originals.push_back(domain.experts[at(expert)]);
    const auto planned_rank = static_cast<int>(costs.size() / planned.size());
    for (int rank = 0; rank < count; ++rank) {
      const std::int64_t stays = stays_on(originals, domain.slots[at(rank)]);
      costs.push_back(-stays * (count + 1) + (rank == planned_rank ? 0 : 1));
    }
  }
  const std::vector<int> rank_of = assign(costs, count);
  std::vector<RankExperts> result(planned.size());
  for (int i = 0; i < count; ++i) result[at(rank_of[at(i)])] = std::move(planned[at(i)]);
  return result;
}

struct Candidate {
  std::vector<RankExperts> ranks;
  double imbalance = 0.0;
};

/// The first candidate that meets the target; candidates come in the order of what they move. If
/// none does, the first that is nearly as good as the best.
std::vector<RankExperts> plan_domain(const RankGroup& group, const Domain& domain,
                                     double balance_target) {
  std::vector<Candidate> candidates;
  const auto meets_target = [&](std::vector<RankExperts> ranks) {
    const double reached = imbalance(group, ranks);
    candidates.push_back({aligned(std::move(ranks), domain), reached});
    return reached <= balance_target;
  };
  const bool is_empty = std::all_of(domain.current.begin(), domain.current.end(),
                                    [](const RankExperts& rank) { return rank.empty(); });
  for (const double hysteresis : kCopyHysteresis) {
    if (is_empty) break;
    if (meets_target(rebalance(group, domain.current, {balance_target, hysteresis}))) {
      return std::move(candidates.back().ranks);
    }
  }
  const std::vector<RankExperts> nothing(domain.current.size());
  if (meets_target(rebalance(group, nothing, {balance_target, 0.0}))) {
    return std::move(candidates.back().ranks);
  }
  double best = candidates.front().imbalance;
  for (const Candidate& candidate : candidates) best = std::min(best, candidate.imbalance);
  const auto chosen = std::find_if(
      candidates.begin(), candidates.end(),
      [&](const Candidate& candidate) { return candidate.imbalance <= best + kWorthMoving; });
  return std::move(chosen->ranks);
}

/// Loads of groups over nodes, max/mean.
double node_imbalance(std::span<const double> group_loads, std::span<const int> node_of_group,
                      int node_count) {
  std::vector<double> loads(at(node_count), 0.0);
  for (std::size_t g = 0; g < group_loads.size(); ++g)
    loads[at(node_of_group[g])] += group_loads[g];
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  return *std::max_element(loads.begin(), loads.end()) * node_count / sum;
}

/// [node, group] how many slots of the node's ranks hold an expert of the group.
std::vector<std::int64_t> group_slots(const ExpertShape& shape, std::span<const int> slots) {
  std::vector<std::int64_t> held(at(shape.node_count) * at(shape.group_count), 0);
  const std::size_t slots_per_node = slots.size() / at(shape.node_count);
  const int group_size = shape.expert_count / shape.group_count;
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot] == kEmptySlot) continue;
    ++held[slot / slots_per_node * at(shape.group_count) + at(slots[slot] / group_size)];
  }
  return held;
}

/// Which node has each group now: the one with most slots of it. Empty if these are not equally
/// many groups a node.
std::vector<int> current_nodes(const ExpertShape& shape, const std::vector<std::int64_t>& held) {
  std::vector<int> node_of_group(at(shape.group_count), 0);
  std::vector<int> groups_of_node(at(shape.node_count), 0);
  for (int group = 0; group < shape.group_count; ++group) {
    const auto slots_on = [&](int node) {
      return held[at(node) * at(shape.group_count) + at(group)];
    };
    int& most = node_of_group[at(group)];
    for (int node = 1; node < shape.node_count; ++node) {
      if (slots_on(node) > slots_on(most)) most = node;
    }
    if (slots_on(most) == 0) return {};
    ++groups_of_node[at(most)];
  }
  for (const int groups : groups_of_node) {
    if (groups != shape.group_count / shape.node_count) return {};
  }
  return node_of_group;
}

/// The node of each group: as they are if that is nearly as even as packing anew; otherwise packed,
/// and each packed node given to the node that holds most of it.
std::vector<int> nodes_of_groups(const ExpertShape& shape, std::span<const double> loads,
                                 std::span<const int> slots) {
  std::vector<double> group_loads(at(shape.group_count), 0.0);
  const std::size_t group_size = loads.size() / group_loads.size();
  for (std::size_t e = 0; e < loads.size(); ++e) group_loads[e / group_size] += loads[e];
  const std::vector<int> packed = pack(group_loads, shape.node_count).bin_of;
  const std::vector<std::int64_t> held = group_slots(shape, slots);
  std::vector<int> kept = current_nodes(shape, held);
  if (!kept.empty() && node_imbalance(group_loads, kept, shape.node_count) <=
                           node_imbalance(group_loads, packed, shape.node_count) + kWorthMoving) {
    return kept;
  }
  std::vector<std::int64_t> costs(at(shape.node_count) * at(shape.node_count), 0);
  for (int group = 0; group < shape.group_count; ++group) {
    for (int node = 0; node < shape.node_count; ++node) {
      costs[at(packed[at(group)]) * at(shape.node_count) + at(node)] -=
          held[at(node) * at(shape.group_count) + at(group)];
    }
  }
  const std::vector<int> node_of_packed = assign(costs, shape.node_count);
  std::vector<int> node_of_group(packed.size());
  for (std::size_t g = 0; g < packed.size(); ++g) node_of_group[g] = node_of_packed[at(packed[g])];
  return node_of_group;
}

/// The ranks that share experts, and which: all of them, or node by node.
std::vector<Domain> domains_of(const ExpertShape& shape, std::span<const double> loads,
                               const Placement& current, int layer) {
  std::vector<std::vector<int>> experts(shape.is_hierarchical() ? at(shape.node_count) : 1);
  if (shape.is_hierarchical()) {
    const std::vector<int> nodes = nodes_of_groups(shape, loads, current.layer(layer));
    const int group_size = shape.expert_count / shape.group_count;
    for (int e = 0; e < shape.expert_count; ++e) {
      experts[at(nodes[at(e / group_size)])].push_back(e);
    }
  } else {
    experts.front().resize(at(shape.expert_count));
    std::iota(experts.front().begin(), experts.front().end(), 0);
  }
  const int ranks = shape.rank_count / static_cast<int>(experts.size());
  std::vector<Domain> domains;
  domains.reserve(experts.size());
  for (std::vector<int>& of_domain : experts) {
    const int first = static_cast<int>(domains.size()) * ranks;
    domains.push_back(
        domain_of(shape, loads, current, layer, {first, first + ranks}, std::move(of_domain)));
  }
  return domains;
}

}  // namespace

std::vector<int> plan_slots(const ExpertShape& shape, double balance_target,
                            std::span<const double> loads, const Placement& current,
                            int layer_index) {
  std::vector<int> slots;
  slots.reserve(at(shape.slot_count()));
  for (const Domain& domain : domains_of(shape, loads, current, layer_index)) {
    const RankGroup group{domain.loads, static_cast<int>(domain.slots.size()),
                          shape.slots_per_rank};
    std::vector<RankExperts> ranks = plan_domain(group, domain, balance_target);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      for (int& expert : ranks[rank]) expert = domain.experts[at(expert)];
      const std::vector<int> placed = in_slots(std::move(ranks[rank]), domain.slots[rank]);
      slots.insert(slots.end(), placed.begin(), placed.end());
    }
  }
  return slots;
}

}  // namespace millrace::controller::placement
