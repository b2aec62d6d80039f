#include "controller/placement/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iostream>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "controller/placement/plain.h"

namespace millrace::controller::placement {
namespace {

using Loads = std::vector<double>;

ExpertShape shape_of(int experts, int ranks, int slots, int nodes = 1, int groups = 1) {
  return {1, experts, ranks, slots, nodes, groups};
}

ExpertLoads one_layer(Loads loads) {
  const int experts = static_cast<int>(loads.size());
  return {1, experts, std::move(loads)};
}

constexpr PlannerSettings kEager{1, 1, 1, 1.0, 0.0};

Placement placed(int ranks, std::vector<int> slots) {
  const int per_rank = static_cast<int>(slots.size()) / ranks;
  return {1, ranks, per_rank, std::move(slots)};
}

Plan planned(const ExpertShape& shape, const PlannerSettings& settings, const ExpertLoads& loads,
             const Placement& current) {
  absl::StatusOr<Plan> plan = plan_experts(shape, settings, loads, current);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

std::string refusal(const ExpertShape& shape, const ExpertLoads& loads, const Placement& current) {
  return std::string(plan_experts(shape, kEager, loads, current).status().message());
}

/// Zipf loads whose owners trade places now and then, and whose sizes wander.
class DriftingLoads {
 public:
  DriftingLoads(int experts, double exponent, unsigned seed) : random_(seed) {
    for (int k = 1; k <= experts; ++k) loads_.push_back(1e6 * std::pow(k, -exponent));
    std::shuffle(loads_.begin(), loads_.end(), random_);
  }
  const Loads& next() {
    std::normal_distribution<double> step(0.0, 0.1);
    for (double& load : loads_) load *= std::exp(step(random_));
    for (std::size_t i = 0; i < loads_.size() / 100; ++i) {
      std::swap(loads_[random_() % loads_.size()], loads_[random_() % loads_.size()]);
    }
    return loads_;
  }

 private:
  std::mt19937 random_;
  Loads loads_;
};

TEST(PlanExperts, MovesLessThanHalfOfWhatThePlainAlgorithmMovesWhileLoadsDrift) {
  struct Case {
    int ranks;
    PlannerSettings settings;
    double bound;
  };
  for (const Case& c : {Case{2, kPrefillSettings, 1.001}, Case{4, kPrefillSettings, 1.001},
                        Case{8, kPrefillSettings, 1.001}, Case{64, kDecodeSettings, 1.03}}) {
    const int slots = *slots_per_rank(384, c.ranks, c.settings.redundant_per_rank, 1000);
    const ExpertShape shape = shape_of(384, c.ranks, slots);
    PlannerSettings settings = c.settings;
    settings.minimum_gain = 0.0;
    int ours = 0;
    int plain = 0;
    double worst = 1.0;
    for (unsigned seed = 1; seed <= 3; ++seed) {
      DriftingLoads drift(384, 0.8, seed);
      Loads loads = drift.next();
      Placement current =
          planned(shape, settings, one_layer(loads), identity_placement(shape)).placement();
      const PlainShape plain_shape{shape.slot_count(), 1, 1, c.ranks};
      Placement plain_current = placed(c.ranks, *plain_plan(loads, plain_shape));
      for (int round = 0; round < 10; ++round) {
        loads = drift.next();
        const Plan plan = planned(shape, settings, one_layer(loads), current);
        worst = std::max(worst, plan.layers[0].imbalance_after);
        ours += plan.move_count();
        EXPECT_EQ(plan.move_count(), moved_slots(current, plan.placement()));
        current = plan.placement();
        const Placement plain_next = placed(c.ranks, *plain_plan(loads, plain_shape));
        plain += moved_slots(plain_current, plain_next);
        plain_current = plain_next;
      }
    }
    EXPECT_LE(ours, plain / 2) << "EP" << c.ranks;
    EXPECT_LE(worst, c.bound) << "EP" << c.ranks;
    std::cout << "EP" << c.ranks << ": " << ours << " slots moved, plain " << plain
              << ", max/mean at most " << worst << "\n";
  }
}

TEST(PlanExperts, NoOtherOrderOfThePlannedRanksMovesLess) {
  std::mt19937 random(3);  // NOLINT: reproducible
  for (int round = 0; round < 500; ++round) {
    const int ranks = 2 + static_cast<int>(random() % 3);
    const int slots = 2 + static_cast<int>(random() % 2);
    const ExpertShape shape = shape_of(ranks * slots - 1, ranks, slots);
    Loads loads;
    for (int e = 0; e < shape.expert_count; ++e) {
      loads.push_back(static_cast<double>(1 + random() % 20));
    }
    std::vector<int> before(static_cast<std::size_t>(shape.slot_count()));
    for (int& expert : before) {
      expert = static_cast<int>(random() % static_cast<unsigned>(shape.expert_count));
    }
    const std::vector<int> after = planned(shape, kEager, one_layer(loads), placed(ranks, before))
                                       .layers[0]
                                       .physical_to_logical;
    const auto stays = [&](int from, int to) {  // experts of the planned rank that `to` has in time
      int count = 0;
      for (int a = from * slots; a < (from + 1) * slots; ++a) {
        const auto* first = before.data() + static_cast<std::ptrdiff_t>(to) * slots;
        count +=
            std::find(first, first + slots, after[static_cast<std::size_t>(a)]) != first + slots;
      }
      return count;
    };
    std::vector<int> order(static_cast<std::size_t>(ranks));
    std::iota(order.begin(), order.end(), 0);
    const auto sum = [&] {
      int all = 0;
      for (int rank = 0; rank < ranks; ++rank)
        all += stays(rank, order[static_cast<std::size_t>(rank)]);
      return all;
    };
    const int as_planned = sum();
    do {
      ASSERT_LE(sum(), as_planned);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(PlanExperts, MapsAndMovesSayTheSame) {
  const ExpertShape shape{3, 10, 4, 3};
  ExpertLoads loads{3, 10, {}};
  std::mt19937 random(5);  // NOLINT: reproducible
  for (int i = 0; i < 30; ++i) loads.counts.push_back(static_cast<double>(random() % 100));
  const Placement before = identity_placement(shape);
  const Plan plan = planned(shape, kEager, loads, before);
  Placement moved = before;
  for (int layer = 0; layer < 3; ++layer) {
    const LayerPlan& of_layer = plan.layers[static_cast<std::size_t>(layer)];
    for (const ExpertMove& move : of_layer.moves) {
      ASSERT_EQ(move.layer, layer);
      int& slot = moved.expert_of[static_cast<std::size_t>(layer) * 12 +
                                  static_cast<std::size_t>(move.slot)];
      EXPECT_NE(slot, move.expert);
      slot = move.expert;
      const std::span<const int> source =
          before.layer(layer).subspan(static_cast<std::size_t>(move.from_rank) * 3, 3);
      EXPECT_NE(std::find(source.begin(), source.end(), move.expert), source.end());
    }
    for (int e = 0; e < 10; ++e) {
      const std::vector<int>& slots = of_layer.logical_to_physical[static_cast<std::size_t>(e)];
      EXPECT_EQ(static_cast<int>(slots.size()), of_layer.copies[static_cast<std::size_t>(e)]);
      EXPECT_TRUE(std::is_sorted(slots.begin(), slots.end()));
      for (const int slot : slots) {
        EXPECT_EQ(of_layer.physical_to_logical[static_cast<std::size_t>(slot)], e);
      }
    }
  }
  EXPECT_EQ(moved, plan.placement());
}

TEST(PlanExperts, SaysWhyALayerStays) {
  const ExpertShape shape = shape_of(4, 2, 2);
  const Placement current = placed(2, {0, 3, 1, 2});
  PlannerSettings settings = kEager;
  const Plan idle = planned(shape, settings, one_layer({0, 0, 0, 0}), current);
  EXPECT_EQ(idle.layers[0].outcome, LayerOutcome::kNoTraffic);
  settings.minimum_gain = 0.25;
  // 7 and 9 of 16: all that there is to win is 0.125.
  const Plan small = planned(shape, settings, one_layer({5, 4, 5, 2}), current);
  EXPECT_EQ(small.layers[0].outcome, LayerOutcome::kTooLittleGain);
  EXPECT_DOUBLE_EQ(small.layers[0].imbalance_before, 1.125);
  EXPECT_TRUE(small.is_empty());
  EXPECT_EQ(small.placement(), current);
  // 3 and 13 of 16, but 1 cannot be shared: 10 against 6 gains 0.375.
  const Plan large = planned(shape, settings, one_layer({2, 9, 4, 1}), current);
  EXPECT_EQ(large.layers[0].outcome, LayerOutcome::kMoves);
  EXPECT_DOUBLE_EQ(large.layers[0].imbalance_before - large.layers[0].imbalance_after, 0.375);
  EXPECT_EQ(to_string(LayerOutcome::kTooLittleGain), "too_little_gain");
}

TEST(PlanExperts, PlansEvenlyWithoutTrafficWhenNothingIsPlacedYet) {
  const ExpertShape shape = shape_of(6, 3, 3);
  const Plan plan =
      planned(shape, kEager, one_layer(Loads(6, 0.0)), placed(3, std::vector<int>(9, kEmptySlot)));
  EXPECT_EQ(plan.layers[0].outcome, LayerOutcome::kRepairs);
  EXPECT_EQ(plan.move_count(), 9);
  EXPECT_EQ(plan.layers[0].moves[0].from_rank, kNoSource);
  EXPECT_EQ(imbalance_of(Loads(6, 1.0), plan.layers[0].physical_to_logical, 3), 1.0);
}

TEST(PlanExperts, SurvivorsOfALostRankTakeItsExpertsAndKeepTheirOwn) {
  const ExpertShape four = shape_of(12, 4, 4);
  std::mt19937 random(9);  // NOLINT: reproducible
  Loads loads;
  for (int e = 0; e < 12; ++e) loads.push_back(static_cast<double>(10 + random() % 10));
  const Placement before =
      planned(four, kEager, one_layer(loads), identity_placement(four)).placement();
  const std::vector<int> survivors{0, 1, 3};
  const Placement left = with_ranks(before, survivors);
  const int slots = *slots_per_rank(12, 3, 1, 6);
  EXPECT_EQ(slots, 5);
  const Plan plan = planned(shape_of(12, 3, slots), kEager, one_layer(loads), left);
  EXPECT_EQ(plan.layers[0].outcome, LayerOutcome::kRepairs);
  const std::set<int> alive(left.expert_of.begin(), left.expert_of.end());
  for (const ExpertMove& move : plan.layers[0].moves) {
    EXPECT_EQ(move.from_rank == kNoSource, alive.count(move.expert) == 0);
  }
  EXPECT_LE(plan.move_count(), 9);  // three new slots, four lost copies, one exchange
}

TEST(PlanExperts, RanksThatJoinGetExpertsFromThoseThatWereThere) {
  const ExpertShape two = shape_of(8, 2, 5);
  const Loads loads{8, 7, 6, 5, 4, 3, 2, 1};
  const Placement before =
      planned(two, kEager, one_layer(loads), identity_placement(two)).placement();
  const std::vector<int> kept{0, 1, -1, -1};
  const Plan plan = planned(shape_of(8, 4, 3), kEager, one_layer(loads), with_ranks(before, kept));
  EXPECT_LE(plan.layers[0].imbalance_after, 1.12);
  for (const ExpertMove& move : plan.layers[0].moves) {
    EXPECT_TRUE(move.from_rank == 0 || move.from_rank == 1);
  }
}

TEST(PlanExperts, KeepsGroupsWholeOnNodesAndNodesWhereTheyAre) {
  const ExpertShape shape = shape_of(32, 8, 5, 2, 8);
  const PlannerSettings settings{1, 1, 1, 1.02, 0.0};
  DriftingLoads drift(32, 0.5, 4);
  Loads loads = drift.next();
  Placement current =
      planned(shape, settings, one_layer(loads), identity_placement(shape)).placement();
  const PlainShape plain_shape{40, 8, 2, 8};
  Placement plain_current = placed(8, *plain_plan(loads, plain_shape));
  int ours = 0;
  int plain = 0;
  for (int round = 0; round < 10; ++round) {
    loads = drift.next();
    const Plan plan = planned(shape, settings, one_layer(loads), current);
    const std::vector<int>& slots = plan.layers[0].physical_to_logical;
    std::vector<std::set<int>> nodes_of_group(8);
    for (std::size_t slot = 0; slot < 40; ++slot) {
      nodes_of_group[static_cast<std::size_t>(slots[slot] / 4)].insert(static_cast<int>(slot / 20));
    }
    for (const std::set<int>& nodes : nodes_of_group) EXPECT_EQ(nodes.size(), 1U);
    const Placement plain_next = placed(8, *plain_plan(loads, plain_shape));
    EXPECT_LE(plan.layers[0].imbalance_after, imbalance_of(loads, plain_next.expert_of, 8) + 0.02);
    ours += plan.move_count();
    plain += moved_slots(plain_current, plain_next);
    current = plan.placement();
    plain_current = plain_next;
  }
  EXPECT_LE(ours, plain / 2);
}

TEST(PlanExperts, RefusesWhatItCannotPlanAndNamesIt) {
  const ExpertShape shape = shape_of(4, 2, 2);
  const Placement current = identity_placement(shape);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(refusal(shape, one_layer({1, nan, 1, 1}), current),
            "the load of layer 0, expert 1 is nan; it must be from 0 to 1e+15 tokens");
  EXPECT_EQ(
      refusal({2, 4, 2, 2}, {2, 4, {1, 1, 1, 1, 1, 1, -3, 1}}, identity_placement({2, 4, 2, 2})),
      "the load of layer 1, expert 2 is -3; it must be from 0 to 1e+15 tokens");
  EXPECT_EQ(refusal(shape, one_layer({1, 1, 1}), current),
            "loads are of 1 layers of 3 experts (3 numbers); the model has 1 of 4");
  EXPECT_EQ(refusal(shape, one_layer({1, 1, 1, 1}), placed(2, {0, 1, 2, 4})),
            "layer 0, slot 3 of the current placement has expert 4; there are 4");
  EXPECT_EQ(refusal(shape, one_layer({1, 1, 1, 1}), placed(4, {0, 1, 2, 3})),
            "the current placement is of 1 layers on 4 ranks (4 slots); the plan is for 1 on 2");
  EXPECT_EQ(refusal(shape_of(4, 3, 1), one_layer({1, 1, 1, 1}), current),
            "3 ranks of 1 expert slots have 3 slots, but the 4 experts need at least 4");
  EXPECT_EQ(refusal(shape_of(4, 0, 2), one_layer({1, 1, 1, 1}), current),
            "rank_count is 0; it must be from 1 to 65536");
  EXPECT_EQ(refusal(shape_of(4, 65536, 65536), one_layer({1, 1, 1, 1}), current),
            "65536 ranks of 65536 slots are too many; there may be 4194304 slots");
  EXPECT_EQ(refusal(shape_of(4, 2, 2, 1, 3), one_layer({1, 1, 1, 1}), current),
            "group_count is 3; it must divide the 4 experts");
}

TEST(PlannerSettings, AreCheckedWithTheirNames) {
  EXPECT_TRUE(validate(kPrefillSettings).ok());
  EXPECT_TRUE(validate(kDecodeSettings).ok());
  const auto message = [](const PlannerSettings& settings) {
    return std::string(validate(settings).message());
  };
  EXPECT_EQ(message({-1, 1, 1, 1.0, 0.0}), "redundant_per_rank is -1; it must be from 0 to 65536");
  EXPECT_EQ(
      message({0, 5, 4, 1.0, 0.0}),
      "window_steps is 5 and interval_steps 4; they must be 1 <= window_steps <= interval_steps");
  EXPECT_EQ(message({0, 1, 1, 0.9, 0.0}), "balance_target is 0.9; it must be at least 1");
  EXPECT_EQ(message({0, 1, 1, 1.0, -0.1}), "minimum_gain is -0.1; it must not be negative");
}

TEST(PlannerSettings, TheWindowIsTheLastStepsBeforeAPlan) {
  const PlannerSettings settings{0, 2, 5, 1.0, 0.0};
  std::string steps;
  for (std::uint64_t step = 0; step < 10; ++step) {
    steps += is_counted(settings, step) ? 'c' : '.';
    if (is_due(settings, step)) steps += 'P';
  }
  EXPECT_EQ(steps, "...ccP...ccP");
}

TEST(SlotsPerRank, RoundsUpUntilAllRanksHaveEquallyMany) {
  EXPECT_EQ(*slots_per_rank(384, 2, 4, 1000), 196);
  EXPECT_EQ(*slots_per_rank(384, 64, 1, 1000), 7);
  EXPECT_EQ(*slots_per_rank(384, 7, 4, 1000), 59);  // 55 experts at most and 4
  EXPECT_EQ(*slots_per_rank(384, 7, 4, 57), 57);    // less memory, less redundancy
  EXPECT_EQ(slots_per_rank(384, 3, 4, 100).status().message(),
            "3 ranks of 100 expert slots have 300 slots, but the 384 experts need at least 384");
  EXPECT_FALSE(slots_per_rank(384, 0, 4, 100).ok());
  EXPECT_FALSE(slots_per_rank(384, 3, -1, 200).ok());
}

TEST(PlanExperts, UnevenSizesAreBalancedToo) {
  for (const int ranks : {1, 3, 5, 7, 63}) {
    const int slots = *slots_per_rank(384, ranks, 4, 1000);
    const ExpertShape shape = shape_of(384, ranks, slots);
    DriftingLoads drift(384, 1.0, 2);
    const Plan plan = planned(shape, kEager, one_layer(drift.next()), identity_placement(shape));
    EXPECT_LE(plan.layers[0].imbalance_after, ranks < 10 ? 1.001 : 1.01) << ranks;
  }
}

}  // namespace
}  // namespace millrace::controller::placement
