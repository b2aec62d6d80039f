#include "api/entrypoint/charge_book.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace millrace::api::entrypoint {
namespace {

using dataplane::routing::RequestSize;
using dataplane::routing::WorkerSnapshot;

TEST(ChargeBook, AReportTakesBackTheChargesItIncludes) {
  ChargeBook book;
  book.charge({.tokens = 10, .kv_blocks = 1});
  book.charge({.tokens = 200, .kv_blocks = 2});
  book.charge({.tokens = 3000, .kv_blocks = 30});
  book.settle(2);
  WorkerSnapshot snapshot{.is_accepting = true, .running = 7};
  book.add_to(snapshot);
  EXPECT_EQ(snapshot.charged_requests, 1u);
  EXPECT_EQ(snapshot.charged_tokens, 3000u);
  EXPECT_EQ(snapshot.charged_kv_blocks, 30u);
  EXPECT_EQ(snapshot.running, 7u);
}

// Whatever the order of starts and reports, what is open is what was charged after the last report.
TEST(ChargeBook, OpenChargesAreThoseBehindTheLastReport) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    ChargeBook book;
    std::vector<RequestSize> all;
    std::uint64_t reported = 0;
    for (int step = 0; step < 100; ++step) {
      if (random() % 2 == 0) {
        all.push_back({.tokens = random() % 1000, .kv_blocks = random() % 10});
        book.charge(all.back());
      } else {
        // Reports only grow; a repeated one changes nothing.
        reported += random() % (all.size() - reported + 1);
        book.settle(reported);
      }
      WorkerSnapshot expected;
      for (std::size_t i = reported; i < all.size(); ++i) {
        ++expected.charged_requests;
        expected.charged_tokens += all[i].tokens;
        expected.charged_kv_blocks += all[i].kv_blocks;
      }
      WorkerSnapshot actual;
      book.add_to(actual);
      ASSERT_EQ(actual.charged_requests, expected.charged_requests) << "seed " << seed;
      ASSERT_EQ(actual.charged_tokens, expected.charged_tokens) << "seed " << seed;
      ASSERT_EQ(actual.charged_kv_blocks, expected.charged_kv_blocks) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace millrace::api::entrypoint
