#include "controller/buckets/demand.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace millrace::controller::buckets {
namespace {

using api::admin::EntrypointReport;
using api::admin::kDemandModulusNs;

EntrypointReport report(std::uint64_t incarnation, std::uint64_t sequence, Demand demand) {
  return {.incarnation = incarnation,
          .sequence = sequence,
          .demand_ns = std::move(demand),
          .costs = {}};
}

TEST(DemandBook, SilenceIsNoDemandOfNothing) {
  DemandBook book(2);
  EXPECT_EQ(book.end_round(), std::nullopt);
  ASSERT_TRUE(book.add("e", report(1, 1, {0, 0})).ok());
  EXPECT_FALSE(book.has_traffic());
  EXPECT_EQ(book.end_round(), (Demand{0, 0}));
  EXPECT_EQ(book.end_round(), std::nullopt);
}

TEST(DemandBook, AddsUpWhatAllEntrypointsCountedSinceTheirLastReports) {
  DemandBook book(2);
  ASSERT_TRUE(book.add("a", report(1, 1, {5, 0})).ok());
  ASSERT_TRUE(book.add("b", report(1, 1, {0, 7})).ok());
  ASSERT_TRUE(book.add("a", report(1, 2, {6, 2})).ok());
  EXPECT_TRUE(book.has_traffic());
  EXPECT_EQ(book.end_round(), (Demand{6, 9}));
  // Sequence 3 was lost; 2 comes again, and late.
  ASSERT_TRUE(book.add("a", report(1, 4, {10, 2})).ok());
  ASSERT_TRUE(book.add("a", report(1, 2, {6, 2})).ok());
  ASSERT_TRUE(book.add("a", report(1, 4, {10, 2})).ok());
  EXPECT_EQ(book.end_round(), (Demand{4, 0}));
}

TEST(DemandBook, ANewProcessCountsFromNothingAndTheOldOneNoMore) {
  DemandBook book(1);
  ASSERT_TRUE(book.add("e", report(4, 7, {100})).ok());
  ASSERT_TRUE(book.add("e", report(5, 20, {30})).ok());
  ASSERT_TRUE(book.add("e", report(4, 8, {150})).ok());
  EXPECT_EQ(book.end_round(), (Demand{130}));
}

TEST(DemandBook, AProcessThatIsOldWhenFirstHeardBringsNoDemandOfThePast) {
  DemandBook book(1);
  ASSERT_TRUE(book.add("e", report(1, kYoungSequence + 1, {1'000'000})).ok());
  EXPECT_EQ(book.end_round(), (Demand{0}));
  ASSERT_TRUE(book.add("e", report(1, kYoungSequence + 2, {1'000'004})).ok());
  EXPECT_EQ(book.end_round(), (Demand{4}));
}

TEST(DemandBook, ForgetsWhoIsSilentForLong) {
  DemandBook book(1);
  ASSERT_TRUE(book.add("e", report(1, 50, {10})).ok());
  EXPECT_TRUE(book.end_round().has_value());
  for (int round = 1; round < kForgetAfterRounds; ++round) {
    EXPECT_EQ(book.end_round(), std::nullopt);
  }
  // It is still known: what came meanwhile counts.
  ASSERT_TRUE(book.add("e", report(1, 51, {15})).ok());
  EXPECT_EQ(book.end_round(), (Demand{5}));
  for (int round = 0; round < kForgetAfterRounds; ++round) {
    EXPECT_EQ(book.end_round(), std::nullopt);
  }
  ASSERT_TRUE(book.add("e", report(1, 52, {99})).ok());
  EXPECT_EQ(book.end_round(), (Demand{0}));
}

TEST(DemandBook, SumsPassTheModulusAndNeverFall) {
  DemandBook book(1);
  ASSERT_TRUE(book.add("e", report(1, 11, {kDemandModulusNs - 3})).ok());
  ASSERT_TRUE(book.add("e", report(1, 12, {4})).ok());
  EXPECT_EQ(book.end_round(), (Demand{7}));
  ASSERT_TRUE(book.add("e", report(1, 13, {2})).ok());
  EXPECT_EQ(book.end_round(), (Demand{0})) << "2 less is not 2^53 - 2 more";
}

TEST(DemandBook, RefusesAnotherNumberOfBuckets) {
  DemandBook book(4);
  const absl::Status status = book.add("e", report(1, 1, {1, 2, 3}));
  EXPECT_EQ(status.message(), "\"demand_ns\" is of 3 buckets; there are 4");
}

/// Whatever is lost, doubled and late: at the end the rounds sum up to what was counted.
TEST(DemandBook, NothingIsLostOrDoubledOnABadNetwork) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    DemandBook book(1);
    std::vector<EntrypointReport> delayed;
    std::uint64_t incarnation = 1;
    std::uint64_t sequence = 0;
    std::uint64_t total = 0;
    std::uint64_t counted = 0;
    std::uint64_t sum = 0;
    const auto deliver = [&](const EntrypointReport& one) { ASSERT_TRUE(book.add("e", one).ok()); };
    for (int step = 0; step < 60; ++step) {
      const std::uint64_t more = random() % 1000;
      total += more;
      counted += more;
      const EntrypointReport now = report(incarnation, ++sequence, {total});
      const auto fate = random() % 4;
      if (fate == 0) delayed.push_back(now);  // lost, if it is never delivered
      if (fate != 0) deliver(now);
      if (fate == 1) deliver(now);
      if (!delayed.empty() && random() % 3 == 0) deliver(delayed[random() % delayed.size()]);
      if (random() % 5 == 0) sum += book.end_round().value_or(Demand{0})[0];
      if (random() % 15 == 0) {
        deliver(report(incarnation, ++sequence, {total}));  // its last words arrive
        ++incarnation;
        sequence = 0;
        total = 0;
      }
    }
    deliver(report(incarnation, ++sequence, {total}));
    sum += book.end_round().value_or(Demand{0})[0];
    EXPECT_EQ(sum, counted);
  }
}

}  // namespace
}  // namespace millrace::controller::buckets
