#include "dataplane/kv/hit_policy.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace::dataplane::kv {
namespace {

/// Prompt lengths around every edge of the rule, and chunk sizes' multiples.
std::vector<int> edge_lengths() {
  std::vector<int> lengths;
  for (const int edge : {0, 128, 134, 256, 262, 390, 4096, 4096 + 134}) {
    for (int d = -1; d <= 1; ++d) {
      if (edge + d > 0) lengths.push_back(edge + d);
    }
  }
  return lengths;
}

/// The rule by trying out: which number of leading blocks is the largest that is stored and leaves
/// 134 tokens.
int largest_hit(int prompt, int blocks) {
  int hit = 0;
  for (int n = 1; n <= blocks; ++n) {
    if (128 * n + 134 <= prompt) hit = 128 * n;
  }
  return hit;
}

TEST(HitPolicy, FollowsTheRuleForEveryEdgeAndEveryCombination) {
  int cases = 0;
  for (const int prompt : edge_lengths()) {
    const int full_blocks = prompt / 128;
    // A hole ends what can be used, so that the first missing block says everything.
    for (int stored = 0; stored <= full_blocks; ++stored) {
      const int hit = largest_hit(prompt, stored);
      EXPECT_EQ(usable_hit(prompt, 128 * stored), hit) << prompt << " " << stored;
      for (const bool window : {false, true}) {
        for (const bool earlier : {false, true}) {
          const HitPlan plan = plan_hit(prompt, 128 * stored, window, earlier);
          ++cases;
          SCOPED_TRACE(testing::Message() << prompt << " tokens, " << stored << " blocks, windows "
                                          << window << earlier);
          const bool is_cold = hit == 0 || (hit == 128 && !window);
          EXPECT_EQ(plan.kind == ReplayKind::kCold, is_cold);
          if (is_cold) {
            EXPECT_EQ(plan, HitPlan{});
            continue;
          }
          EXPECT_EQ(plan.write_floor, hit);
          EXPECT_EQ(plan.compute_start, window ? hit : hit - 128);
          if (window) {
            EXPECT_EQ(plan.kind, ReplayKind::kWindow);
            EXPECT_EQ(plan.window_anchor, hit);
          } else {
            EXPECT_EQ(plan.kind, earlier ? ReplayKind::kExact : ReplayKind::kTruncated);
            EXPECT_EQ(plan.window_anchor, earlier ? hit - 128 : 0);
          }
          // What the engine needs: rows of the decoder's tail are all run, a window that is asked
          // for has all of its positions, and no group of a compressor is cut.
          EXPECT_LT(plan.compute_start, prompt - 128);
          EXPECT_TRUE(plan.window_anchor == 0 || plan.window_anchor >= 128);
          EXPECT_EQ(plan.compute_start % 128, 0);
        }
      }
    }
  }
  EXPECT_GT(cases, 500);
}

TEST(HitPolicy, ValuesByHand) {
  EXPECT_EQ(usable_hit(261, 256), 0);    // 261 - 134 = 127
  EXPECT_EQ(usable_hit(262, 256), 128);  // 262 - 134 = 128
  EXPECT_EQ(usable_hit(389, 384), 128);
  EXPECT_EQ(usable_hit(390, 384), 256);
  EXPECT_EQ(usable_hit(390, 128), 128);  // only one block is stored
  EXPECT_EQ(usable_hit(390, 255), 128);  // half a block is none
  EXPECT_EQ(usable_hit(1, 0), 0);
  // One block without its window would be run again anyway.
  EXPECT_EQ(plan_hit(262, 256, false, false), HitPlan{});
  EXPECT_EQ(plan_hit(262, 256, true, false), (HitPlan{ReplayKind::kWindow, 128, 128, 128}));
  EXPECT_EQ(plan_hit(4096, 4096, false, true), (HitPlan{ReplayKind::kExact, 3712, 3840, 3712}));
  EXPECT_EQ(plan_hit(4096, 4096, false, false), (HitPlan{ReplayKind::kTruncated, 3712, 3840, 0}));
}

TEST(HitPolicy, AnExactRepeatMissesItsOwnWindow) {
  for (int prompt = 1; prompt < 1000; ++prompt) {
    const int anchor = anchor_after(prompt);
    EXPECT_LT(anchor, prompt);
    EXPECT_EQ(anchor % 128, 0);
    EXPECT_LT(prompt - anchor, 129);
    // Its hit ends before the window that it left.
    EXPECT_TRUE(anchor == 0 || usable_hit(prompt, prompt) < anchor) << prompt;
  }
}

TEST(HitPolicy, ALongerTurnFindsTheWindowOfTheOneBefore) {
  for (int prompt = 129; prompt < 1000; prompt += 7) {
    const int anchor = anchor_after(prompt);
    for (int more = 134; more < 300; more += 11) {
      // Blocks up to the anchor are stored, the next one is another text's.
      EXPECT_EQ(usable_hit(anchor + more, anchor), anchor);
    }
  }
}

}  // namespace
}  // namespace millrace::dataplane::kv
