#include "controller/placement/rebalance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iostream>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "controller/placement/assignment.h"

namespace millrace::controller::placement {
namespace {

std::vector<RankExperts> nothing(int ranks) {
  return std::vector<RankExperts>(static_cast<std::size_t>(ranks));
}

/// Shuffled Zipf: the k-th of the shuffled experts has load k^-exponent.
std::vector<double> zipf(int experts, double exponent, unsigned seed) {
  std::vector<double> loads;
  for (int k = 1; k <= experts; ++k) loads.push_back(1e6 * std::pow(k, -exponent));
  std::shuffle(loads.begin(), loads.end(), std::mt19937(seed));  // NOLINT: reproducible
  return loads;
}

void expect_whole(const RankGroup& group, const std::vector<RankExperts>& ranks) {
  std::set<int> seen;
  for (const RankExperts& rank : ranks) {
    ASSERT_EQ(static_cast<int>(rank.size()), group.slots_per_rank);
    const std::set<int> here(rank.begin(), rank.end());
    ASSERT_EQ(here.size(), rank.size()) << "two copies on one rank";
    seen.insert(here.begin(), here.end());
  }
  ASSERT_EQ(seen.size(), group.loads.size()) << "an expert has no copy";
}

TEST(Rebalance, KnownLoadsAreSpreadAsEvenlyAsPromised) {
  struct Case {
    int ranks;
    int redundant;
    double bound;
  };
  for (const Case& c : {Case{2, 4, 1.001}, {4, 4, 1.001}, {8, 4, 1.001}, {64, 1, 1.03}}) {
    for (const double exponent : {0.5, 0.8, 1.0}) {
      double worst = 1.0;
      for (unsigned seed = 1; seed <= 5; ++seed) {
        const std::vector<double> loads = zipf(384, exponent, seed);
        const RankGroup group{loads, c.ranks, 384 / c.ranks + c.redundant};
        const std::vector<RankExperts> ranks = rebalance(group, nothing(c.ranks), {});
        expect_whole(group, ranks);
        worst = std::max(worst, imbalance(group, ranks));
      }
      EXPECT_LE(worst, c.bound) << "EP" << c.ranks << ", Zipf " << exponent;
      std::cout << "EP" << c.ranks << " + " << c.redundant << ", Zipf " << exponent
                << ": max/mean at most " << worst << "\n";
    }
  }
}

/// The smallest largest rank load that any placement has, by trying all: of those with given
/// numbers of copies, and of all.
class BestPlacement {
 public:
  BestPlacement(const std::vector<double>& loads, int ranks, int slots, std::vector<int> copies)
      : loads_(loads),
        ranks_(ranks),
        slots_(slots),
        given_(std::move(copies)),
        masks_(static_cast<std::size_t>(ranks), 0) {
    choose(0);
  }

  double with_given_copies() const { return best_given_; }
  double of_all() const { return best_; }

 private:
  /// Every rank takes a set of experts; ranks are alike, so sets come in ascending order.
  void choose(std::size_t rank) {
    if (rank == masks_.size()) {
      judge();
      return;
    }
    const unsigned least = rank == 0 ? 0 : masks_[rank - 1];
    for (unsigned mask = least; mask < 1U << loads_.size(); ++mask) {
      if (__builtin_popcount(mask) != slots_) continue;
      masks_[rank] = mask;
      choose(rank + 1);
    }
  }

  void judge() {
    std::vector<double> rank_loads(static_cast<std::size_t>(ranks_), 0.0);
    bool is_given = true;
    for (std::size_t e = 0; e < loads_.size(); ++e) {
      int copies = 0;
      for (const unsigned mask : masks_) copies += (mask >> e & 1U) != 0 ? 1 : 0;
      if (copies == 0) return;
      is_given = is_given && copies == given_[e];
      for (std::size_t rank = 0; rank < masks_.size(); ++rank) {
        if ((masks_[rank] >> e & 1U) != 0) rank_loads[rank] += loads_[e] / copies;
      }
    }
    const double heaviest = *std::max_element(rank_loads.begin(), rank_loads.end());
    best_ = std::min(best_, heaviest);
    if (is_given) best_given_ = std::min(best_given_, heaviest);
  }

  const std::vector<double>& loads_;
  const int ranks_;
  const int slots_;
  const std::vector<int> given_;
  std::vector<unsigned> masks_;
  double best_ = 1e300;
  double best_given_ = 1e300;
};

std::vector<int> copies_in(const std::vector<RankExperts>& ranks, std::size_t experts) {
  std::vector<int> copies(experts, 0);
  for (const RankExperts& rank : ranks) {
    for (const int expert : rank) ++copies[static_cast<std::size_t>(expert)];
  }
  return copies;
}

/// How far from the best placements.
struct Distance {
  int cases = 0;
  int optimal = 0;
  double sum = 0.0;
  double worst = 1.0;

  void add(double ratio) {
    ++cases;
    optimal += ratio < 1.0 + 1e-9 ? 1 : 0;
    sum += ratio;
    worst = std::max(worst, ratio);
  }
};

std::ostream& operator<<(std::ostream& out, const Distance& distance) {
  return out << distance.optimal << " of " << distance.cases << " optimal, mean "
             << distance.sum / distance.cases << ", worst " << distance.worst << " of the best";
}

TEST(Rebalance, SmallCasesComeCloseToTheBestOfAllPlacements) {
  Distance packed;
  Distance with_copies;
  for (const auto& [experts, ranks, slots] : {std::tuple(4, 2, 2),
                                              {6, 2, 3},
                                              {6, 3, 2},
                                              {3, 2, 2},
                                              {4, 2, 3},
                                              {4, 3, 2},
                                              {5, 2, 3},
                                              {5, 3, 2}}) {
    std::vector<int> weights(static_cast<std::size_t>(experts), 1);
    while (true) {
      const std::vector<double> loads(weights.begin(), weights.end());
      const RankGroup group{loads, ranks, slots};
      const std::vector<RankExperts> planned = rebalance(group, nothing(ranks), {});
      expect_whole(group, planned);
      const double heaviest =
          imbalance(group, planned) * std::accumulate(loads.begin(), loads.end(), 0.0) / ranks;
      const BestPlacement best(loads, ranks, slots, copies_in(planned, loads.size()));
      packed.add(heaviest / best.with_given_copies());
      with_copies.add(heaviest / best.of_all());
      // The next non-decreasing list of weights in [1, 5].
      std::size_t digit = weights.size();
      while (digit > 0 && weights[digit - 1] == 5) --digit;
      if (digit == 0) break;
      const int next = weights[digit - 1] + 1;
      std::fill(weights.begin() + static_cast<std::ptrdiff_t>(digit) - 1, weights.end(), next);
    }
  }
  std::cout << "packing: " << packed << "\nwith the choice of copies: " << with_copies << "\n";
  EXPECT_GE(packed.optimal, packed.cases * 95 / 100);
  EXPECT_LE(packed.worst, 1.1);
  // Copies are chosen for the largest load per copy, not for how they will pack: with two or three
  // slots a rank that costs something.
  EXPECT_LE(with_copies.sum / with_copies.cases, 1.03);
  EXPECT_LE(with_copies.worst, 1.4);
}

TEST(Rebalance, KeepsEverythingWhenTheTargetIsMet) {
  const std::vector<double> loads{5, 4, 3, 2};
  const RankGroup group{loads, 2, 2};
  const std::vector<RankExperts> current{{0, 3}, {1, 2}};
  EXPECT_EQ(rebalance(group, current, {}), current);
}

TEST(Rebalance, NeverTwoCopiesOnOneRankUnlessARankHasMoreSlotsThanExperts) {
  std::mt19937 random(7);  // NOLINT: reproducible
  for (int round = 0; round < 3000; ++round) {
    const int experts = 1 + static_cast<int>(random() % 9);
    const int ranks = 1 + static_cast<int>(random() % 6);
    const int least = (experts + ranks - 1) / ranks;
    const int slots = least + static_cast<int>(random() % 4);
    std::vector<double> loads(static_cast<std::size_t>(experts));
    for (double& load : loads) load = static_cast<double>(random() % 4 * (random() % 50));
    // Whatever was there before: too much, too little, doubles, experts of elsewhere.
    std::vector<RankExperts> current = nothing(ranks);
    for (RankExperts& rank : current) {
      rank.resize(random() % static_cast<unsigned>(2 * slots + 1));
      for (int& expert : rank) expert = static_cast<int>(random() % 12) - 1;
    }
    const RankGroup group{loads, ranks, slots};
    const double hysteresis = random() % 2 == 0 ? 0.0 : 0.4;
    const std::vector<RankExperts> planned = rebalance(group, current, {1.0, hysteresis});
    if (slots <= experts) {
      expect_whole(group, planned);
    } else {
      for (const RankExperts& rank : planned) {
        EXPECT_EQ(std::set<int>(rank.begin(), rank.end()).size(), loads.size());
        EXPECT_EQ(rank, planned.front());
      }
    }
    EXPECT_EQ(planned, rebalance(group, current, {1.0, hysteresis}));
  }
}

TEST(Assign, IsTheCheapestOfAllAssignments) {
  std::mt19937 random(11);  // NOLINT: reproducible
  for (int round = 0; round < 2000; ++round) {
    const int count = static_cast<int>(random() % 7);
    std::vector<std::int64_t> costs(static_cast<std::size_t>(count * count));
    for (std::int64_t& cost : costs) cost = static_cast<std::int64_t>(random() % 12) - 6;
    const std::vector<int> assigned = assign(costs, count);
    std::vector<int> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    ASSERT_TRUE(std::is_permutation(assigned.begin(), assigned.end(), order.begin(), order.end()));
    std::int64_t best = cost_of(costs, order);
    while (std::next_permutation(order.begin(), order.end())) {
      best = std::min(best, cost_of(costs, order));
    }
    ASSERT_EQ(cost_of(costs, assigned), best);
  }
}

}  // namespace
}  // namespace millrace::controller::placement
