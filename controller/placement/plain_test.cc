#include "controller/placement/plain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace millrace::controller::placement {
namespace {

TEST(PlainPlan, ReproducesBothPublishedRows) {
  const PlainShape shape{.slot_count = 16, .group_count = 4, .node_count = 2, .rank_count = 8};
  const std::vector<double> first{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86};
  const std::vector<double> second{20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27};
  EXPECT_EQ(*plain_plan(first, shape),
            (std::vector<int>{5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1}));
  EXPECT_EQ(*plain_plan(second, shape),
            (std::vector<int>{7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1}));
}

TEST(PlainPlan, IgnoresNodesThatDoNotDivideTheGroups) {
  const std::vector<double> loads{9, 1, 5, 3, 7, 2};
  const PlainShape uneven{.slot_count = 8, .group_count = 3, .node_count = 2, .rank_count = 4};
  const PlainShape global{.slot_count = 8, .group_count = 1, .node_count = 1, .rank_count = 4};
  EXPECT_EQ(*plain_plan(loads, uneven), *plain_plan(loads, global));
}

TEST(PlainPlan, NamesTheRuleThatANumberBreaks) {
  const std::vector<double> loads(6, 1.0);
  const auto message = [&](const PlainShape& shape) {
    return std::string(plain_plan(loads, shape).status().message());
  };
  EXPECT_EQ(message({.slot_count = 5}),
            "slot_count is 5; it must be at least the number of experts, 6");
  EXPECT_EQ(message({.slot_count = 8, .rank_count = 3}),
            "rank_count is 3; it must divide the 8 slots");
  EXPECT_EQ(message({.slot_count = 8, .node_count = 3, .rank_count = 4}),
            "node_count is 3; it must divide the 4 ranks");
  EXPECT_EQ(message({.slot_count = 8, .group_count = 4, .rank_count = 4}),
            "group_count is 4; it must divide the 6 experts");
}

/// Calls visit with every vector of `size` numbers in [low, high].
template <typename Visit>
void for_each_vector(int size, int low, int high, const Visit& visit) {
  std::vector<int> numbers(static_cast<std::size_t>(size), low);
  while (true) {
    visit(numbers);
    std::size_t digit = 0;
    while (digit < numbers.size() && numbers[digit] == high) numbers[digit++] = low;
    if (digit == numbers.size()) return;
    ++numbers[digit];
  }
}

double largest_share(const std::vector<double>& loads, const std::vector<int>& copies) {
  double largest = 0;
  for (std::size_t e = 0; e < loads.size(); ++e) {
    largest = std::max(largest, loads[e] / copies[e]);
  }
  return largest;
}

TEST(Replicate, NoOtherNumberOfCopiesHasASmallerLargestShare) {
  for (const int experts : {1, 2, 3, 4}) {
    for (int copy_count = experts; copy_count <= experts + 4; ++copy_count) {
      std::vector<std::vector<int>> choices;
      for_each_vector(experts, 1, copy_count, [&](const std::vector<int>& copies) {
        if (std::accumulate(copies.begin(), copies.end(), 0) == copy_count) {
          choices.push_back(copies);
        }
      });
      for_each_vector(experts, 0, 5, [&](const std::vector<int>& weights) {
        const std::vector<double> loads(weights.begin(), weights.end());
        double best = largest_share(loads, choices.front());
        for (const std::vector<int>& copies : choices) {
          best = std::min(best, largest_share(loads, copies));
        }
        ASSERT_EQ(largest_share(loads, replicate(loads, copy_count).copies), best);
      });
    }
  }
}

/// The heaviest bin of the best packing, by trying all.
double best_heaviest(const std::vector<double>& weights, std::vector<double>& bins,
                     std::vector<int>& room, std::size_t item) {
  if (item == weights.size()) return *std::max_element(bins.begin(), bins.end());
  double best = 1e300;
  for (std::size_t bin = 0; bin < bins.size(); ++bin) {
    if (room[bin] == 0) continue;
    --room[bin];
    bins[bin] += weights[item];
    best = std::min(best, best_heaviest(weights, bins, room, item + 1));
    bins[bin] -= weights[item];
    ++room[bin];
  }
  return best;
}

TEST(Pack, FillsEveryBinAndStaysWithinItsBoundOfTheBestPacking) {
  for (const auto& [items, bin_count] : {std::pair(2, 1), {4, 2}, {6, 2}, {6, 3}}) {
    for_each_vector(
        items, 1, 4,
        [&, item_count = items, bins_wanted = bin_count](const std::vector<int>& numbers) {
          if (!std::is_sorted(numbers.begin(), numbers.end()))
            return;  // one order of each is enough
          const std::vector<double> weights(numbers.begin(), numbers.end());
          const Packing packing = pack(weights, bins_wanted);
          std::vector<double> bins(static_cast<std::size_t>(bins_wanted), 0.0);
          std::vector<int> filled(bins.size(), 0);
          for (std::size_t item = 0; item < weights.size(); ++item) {
            const auto bin = static_cast<std::size_t>(packing.bin_of[item]);
            bins[bin] += weights[item];
            ++filled[bin];
          }
          for (const int count : filled) ASSERT_EQ(count, item_count / bins_wanted);
          std::vector<double> empty(bins.size(), 0.0);
          std::vector<int> room(bins.size(), item_count / bins_wanted);
          const double best = best_heaviest(weights, empty, room, 0);
          // Graham's bound of longest-first (1969), which the limit on items does not spoil here.
          const double bound = 4.0 / 3.0 - 1.0 / (3.0 * bins_wanted);
          ASSERT_LE(*std::max_element(bins.begin(), bins.end()), bound * best + 1e-9);
        });
  }
}

TEST(Pack, OneItemABinIsIdentity) {
  const std::vector<double> weights{1, 9, 5};
  EXPECT_EQ(pack(weights, 3).bin_of, (std::vector<int>{0, 1, 2}));
}

}  // namespace
}  // namespace millrace::controller::placement
