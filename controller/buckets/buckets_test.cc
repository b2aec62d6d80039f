#include "controller/buckets/buckets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace millrace::controller::buckets {
namespace {

SplitInput input_of(const std::vector<int>& buckets, std::optional<Demand> demand,
                    std::optional<Demand> previous) {
  SplitInput input{{}, std::move(demand), std::move(previous)};
  for (const int bucket : buckets) {
    std::string id("prefill-");
    id += std::to_string(input.instances.size());
    input.instances.push_back({std::move(id), bucket});
  }
  return input;
}

Split split_of(const SplitSettings& settings, const SplitInput& input) {
  absl::StatusOr<Split> split = split_instances(settings, input);
  EXPECT_TRUE(split.ok()) << split.status();
  return *std::move(split);
}

Split split_of(const std::vector<int>& buckets, const std::optional<Demand>& demand,
               const std::optional<Demand>& previous) {
  return split_of({}, input_of(buckets, demand, previous));
}

std::vector<int> counts_of(const std::vector<int>& bucket_of) {
  std::vector<int> counts(4, 0);
  for (const int bucket : bucket_of) ++counts[static_cast<std::size_t>(bucket)];
  return counts;
}

TEST(Apportion, IsNearestToTheExactSharesOfAllSplits) {
  for (int n = 1; n <= 7; ++n) {
    for (int code = 1; code < 6 * 6 * 6 * 6; ++code) {
      const Demand demand{
          static_cast<std::uint64_t>(code % 6), static_cast<std::uint64_t>(code / 6 % 6),
          static_cast<std::uint64_t>(code / 36 % 6), static_cast<std::uint64_t>(code / 216)};
      const std::vector<int> counts = apportion(demand, n);
      ASSERT_EQ(std::accumulate(counts.begin(), counts.end(), 0), n);
      const auto sum = std::accumulate(demand.begin(), demand.end(), std::uint64_t{0});
      const auto wanting = 4 - std::count(demand.begin(), demand.end(), std::uint64_t{0});
      // Squared distances, times sum^2 to stay in whole numbers.
      const auto distance = [&](const std::vector<int>& split) {
        std::int64_t all = 0;
        for (std::size_t b = 0; b < 4; ++b) {
          const std::int64_t off =
              static_cast<std::int64_t>(split[b]) * static_cast<std::int64_t>(sum) -
              n * static_cast<std::int64_t>(demand[b]);
          all += off * off;
        }
        return all;
      };
      if (n < wanting) {  // the largest demands have one each
        for (std::size_t a = 0; a < 4; ++a) {
          ASSERT_LE(counts[a], 1);
          for (std::size_t b = 0; b < 4; ++b) {
            ASSERT_TRUE(counts[a] <= counts[b] || demand[a] >= demand[b]);
          }
        }
        continue;
      }
      std::int64_t best = distance(counts);
      for (int a = 0; a <= n; ++a) {
        for (int b = 0; a + b <= n; ++b) {
          for (int c = 0; a + b + c <= n; ++c) {
            const std::vector<int> other{a, b, c, n - a - b - c};
            bool serves_all = true;
            for (std::size_t i = 0; i < 4; ++i) serves_all &= demand[i] == 0 || other[i] > 0;
            if (serves_all) best = std::min(best, distance(other));
          }
        }
      }
      ASSERT_EQ(distance(counts), best);
      for (std::size_t i = 0; i < 4; ++i) ASSERT_EQ(demand[i] > 0 && counts[i] == 0, false);
    }
  }
}

TEST(Apportion, TakesDemandsOfAnySize) {
  const std::uint64_t most = ~std::uint64_t{0};
  const Demand demand{most, most, 0, most};
  EXPECT_EQ(apportion(demand, 3000), (std::vector<int>{1000, 1000, 0, 1000}));
  EXPECT_EQ(apportion(Demand{0, 0, 0, 0}, 5), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(apportion(demand, 0), (std::vector<int>{0, 0, 0, 0}));
}

TEST(SplitInstances, NewInstancesFillTheSplitThatDemandAsksFor) {
  const Split split = split_of(std::vector<int>(8, kNoBucket), Demand{37, 47, 17, 0}, std::nullopt);
  EXPECT_EQ(counts_of(split.bucket_of), (std::vector<int>{3, 4, 1, 0}));
  EXPECT_TRUE(split.moves.empty());
  EXPECT_EQ(split.outcome, SplitOutcome::kSettled);
}

TEST(SplitInstances, MovesWhatTwoRoundsWantAndNotMoreThanTheLimit) {
  const std::vector<int> now{0, 0, 0, 0, 0, 0, 1, 1, 2, 3};
  const Demand demand{20, 60, 10, 10};
  const Split first = split_of(now, demand, Demand{60, 20, 10, 10});
  EXPECT_EQ(first.outcome, SplitOutcome::kUnconfirmed);
  EXPECT_EQ(first.bucket_of, now);
  EXPECT_EQ(first.wanted, (std::vector<int>{2, 6, 1, 1}));
  const Split second = split_of(now, demand, demand);
  EXPECT_EQ(second.outcome, SplitOutcome::kMoved);
  EXPECT_EQ(second.moves, (std::vector<BucketMove>{{"prefill-0", 0, 1}, {"prefill-1", 0, 1}}));
  EXPECT_EQ(second.withheld_moves, 2);
  EXPECT_EQ(counts_of(second.bucket_of), (std::vector<int>{4, 4, 1, 1}));
}

TEST(SplitInstances, ABucketWithoutAnInstanceGetsOneAtOnce) {
  const Split split = split_of({0, 0, 0, 1}, Demand{50, 40, 0, 1}, Demand{50, 40, 0, 0});
  EXPECT_EQ(split.moves, (std::vector<BucketMove>{{"prefill-0", 0, 3}}));
  // There are fewer instances than buckets with demand: who was wanted a round ago stays.
  const Split short_of = split_of({0, 1}, Demand{10, 0, 90, 0}, Demand{10, 90, 0, 0});
  EXPECT_EQ(short_of.outcome, SplitOutcome::kUnconfirmed);
}

TEST(SplitInstances, StaysWithoutKnowledgeWithoutTrafficAndForLittle) {
  const std::vector<int> now{0, 0, 0, 1};
  const Demand turned{10, 90, 0, 0};
  EXPECT_EQ(split_of(now, std::nullopt, turned).outcome, SplitOutcome::kNoTelemetry);
  EXPECT_EQ(split_of(now, Demand{0, 0, 0, 0}, turned).outcome, SplitOutcome::kNoTraffic);
  EXPECT_EQ(split_of(now, turned, Demand{0, 0, 0, 0}).outcome, SplitOutcome::kUnconfirmed);
  // 0.39 of four is nearer to two than to one, by a tenth of what the setting asks for.
  EXPECT_EQ(split_of(now, Demand{61, 39, 0, 0}, turned).outcome, SplitOutcome::kSmallChange);
  EXPECT_EQ(split_of(now, Demand{59, 41, 0, 0}, turned).outcome, SplitOutcome::kMoved);
  EXPECT_EQ(split_of(now, Demand{75, 25, 0, 0}, turned).outcome, SplitOutcome::kSettled);
  EXPECT_EQ(to_string(SplitOutcome::kNoTelemetry), "no_telemetry");
}

TEST(SplitInstances, InstancesThatWentAndCameLeaveTheOthersWhereTheyAre) {
  // Of 3, 3, 1, 1 two of bucket 1 are gone and one new one is there.
  const Demand demand{40, 40, 10, 10};
  const Split split = split_of({0, 0, 0, 1, 2, 3, kNoBucket}, demand, demand);
  EXPECT_EQ(split.bucket_of, (std::vector<int>{0, 0, 0, 1, 2, 3, 1}));
  const Split unknown =
      split_of({0, 1, kNoBucket, kNoBucket, kNoBucket}, std::nullopt, std::nullopt);
  EXPECT_EQ(unknown.bucket_of, (std::vector<int>{0, 1, 2, 3, 0}));
  EXPECT_TRUE(split_of(std::vector<int>{}, demand, demand).bucket_of.empty());
}

Demand random_demand(std::mt19937& random) {
  Demand demand(4, 0);
  for (std::uint64_t& ns : demand) ns = random() % 3 == 0 ? 0 : random() % 1000;
  return demand;
}

/// Runs rounds in which demand goes round in `pattern`; returns the last round that moved anything.
int last_move(const SplitSettings& settings, std::vector<int> buckets,
              const std::vector<Demand>& pattern, int rounds) {
  int last = -1;
  std::optional<Demand> previous;
  for (int round = 0; round < rounds; ++round) {
    const Demand& demand = pattern[static_cast<std::size_t>(round) % pattern.size()];
    const Split split = split_of(settings, input_of(buckets, demand, previous));
    EXPECT_LE(static_cast<int>(split.moves.size()), settings.max_moves);
    int changed = 0;
    for (std::size_t i = 0; i < buckets.size(); ++i)
      changed += buckets[i] == split.bucket_of[i] ? 0 : 1;
    EXPECT_EQ(changed, static_cast<int>(split.moves.size()));
    if (changed > 0) last = round;
    buckets = split.bucket_of;
    previous = demand;
  }
  return last;
}

TEST(SplitInstances, ConstantAndAlternatingDemandComeToRest) {
  std::mt19937 random(17);  // NOLINT: reproducible
  for (int seed = 0; seed < 300; ++seed) {
    const int n = 1 + static_cast<int>(random() % 20);
    std::vector<int> buckets(static_cast<std::size_t>(n));
    for (int& bucket : buckets) bucket = static_cast<int>(random() % 4);
    const SplitSettings settings{4, 1 + static_cast<int>(random() % 3),
                                 static_cast<double>(random() % 10) / 50.0};
    const Demand a = random_demand(random);
    const Demand b = random_demand(random);
    // An instance moves at most once for good, and once more to a bucket that has none.
    const int bound = 2 * (n + 4);
    ASSERT_LT(last_move(settings, buckets, {a}, 2 * bound), bound) << seed;
    ASSERT_LT(last_move(settings, buckets, {a, b}, 2 * bound), bound) << seed;
  }
}

TEST(SplitInstances, ConstantDemandIsMetUpToTheHysteresis) {
  std::mt19937 random(23);  // NOLINT: reproducible
  for (int seed = 0; seed < 200; ++seed) {
    const int n = 4 + static_cast<int>(random() % 30);
    std::vector<int> buckets(static_cast<std::size_t>(n), static_cast<int>(random() % 4));
    const Demand demand = random_demand(random);
    const SplitSettings settings;
    for (int round = 0; round < 2 * n; ++round) {
      buckets = split_of(settings, input_of(buckets, demand, demand)).bucket_of;
    }
    const std::vector<int> wanted = apportion(demand, n);
    const std::vector<int> counts = counts_of(buckets);
    for (std::size_t b = 0; b < 4; ++b) {
      if (std::accumulate(demand.begin(), demand.end(), std::uint64_t{0}) == 0) continue;
      ASSERT_LE(std::abs(wanted[b] - counts[b]), 1 + 0.05 * n) << seed;
      ASSERT_EQ(demand[b] > 0 && counts[b] == 0, false) << seed;
    }
  }
}

TEST(SplitInstances, RefusesWhatDoesNotFitAndNamesIt) {
  const auto message = [](const SplitSettings& settings, const SplitInput& input) {
    return std::string(split_instances(settings, input).status().message());
  };
  EXPECT_EQ(message({}, input_of({0}, Demand{1, 2}, std::nullopt)),
            "demand is of 2 buckets; there are 4");
  EXPECT_EQ(message({}, input_of({4}, std::nullopt, std::nullopt)),
            "instance prefill-0 is in bucket 4; there are 4");
  EXPECT_EQ(message({}, {{{"a", 0}, {"a", 1}}, std::nullopt, std::nullopt}),
            "instance a is there twice");
  EXPECT_EQ(message({0, 1, 0.0}, {}), "bucket_count is 0; it must be at least 1");
  EXPECT_EQ(message({4, 0, 0.0}, {}), "max_moves is 0; it must be at least 1");
  EXPECT_EQ(message({4, 1, std::nan("")}, {}), "min_share_change is nan; it must be from 0 to 1");
}

}  // namespace
}  // namespace millrace::controller::buckets
