// Facts that only global KV can carry: with the right blocks they are recalled, without them they
// are not. So a test that relies on recall can fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "tests/quality/nano_runner.h"

namespace millrace::tests::quality {
namespace {

using deploy::cli::EvalTask;

struct Run {
  std::size_t first = 0;
  std::size_t length = 0;
};

/// Where the prompt states what the answer repeats: the longest run of tokens that both have.
Run stated_at(const EvalTask& task) {
  const std::vector<TokenId>& prompt = task.prompt_ids;
  Run best;
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    for (std::size_t j = 0; j < task.expect_ids.size(); ++j) {
      std::size_t n = 0;
      while (i + n < prompt.size() && j + n < task.expect_ids.size() &&
             prompt[i + n] == task.expect_ids[j + n]) {
        ++n;
      }
      if (n > best.length) best = {.first = i, .length = n};
    }
  }
  return best;
}

/// A fact that lies below everything that is run again after the longest hit.
struct FarFact {
  EvalTask task = {};
  std::size_t first_block = 0;
  std::size_t last_block = 0;
};

std::vector<FarFact> far_facts() {
  std::vector<FarFact> facts;
  for (EvalTask& task :
       read_tasks({"recall_512", "recall_1024", "recall_2048"}, 2 * kBlockTokens + 1)) {
    const Run stated = stated_at(task);
    const auto replayed =
        static_cast<std::size_t>(longest_hit(task.prompt_ids.size()) - kBlockTokens);
    if (stated.length < 4 || stated.first + stated.length > replayed) continue;
    facts.push_back({.task = std::move(task),
                     .first_block = stated.first / kBlockTokens,
                     .last_block = (stated.first + stated.length - 1) / kBlockTokens});
  }
  return facts;
}

TEST(KvAblation, FarFactsAreRecalledFromTheRightBlocksOnly) {
  NanoRunner nano({});
  const std::vector<FarFact> facts = far_facts();
  ASSERT_GE(facts.size(), 20u);

  int cold_right = 0, hit_right = 0, zero_right = 0, wrong_right = 0;
  Blocks foreign;  // of the task before
  for (const FarFact& fact : facts) {
    const EvalTask& task = fact.task;
    const auto right = [&](const Answer& answer) {
      return is_exact(answer, task.expect_ids, nano.vocab_size()) ? 1 : 0;
    };
    const Answer cold = nano.run(task.prompt_ids, task.expect_ids);
    Hit hit{.tokens = longest_hit(task.prompt_ids.size())};
    hit.blocks.assign(cold.blocks.begin(), cold.blocks.begin() + hit.tokens / kBlockTokens);
    cold_right += right(cold);
    hit_right += right(nano.run(task.prompt_ids, task.expect_ids, hit));

    Hit wrong = hit;
    if (foreign.empty()) foreign = {cold.blocks.rbegin(), cold.blocks.rend()};
    for (std::size_t b = fact.first_block; b <= fact.last_block; ++b) {
      wrong.blocks[b] = foreign[b % foreign.size()];
    }
    wrong_right += right(nano.run(task.prompt_ids, task.expect_ids, wrong));
    foreign = cold.blocks;

    Hit zero = hit;
    for (auto& block : zero.blocks) std::fill(block.begin(), block.end(), std::byte{0});
    zero_right += right(nano.run(task.prompt_ids, task.expect_ids, zero));
  }
  std::printf("of %zu far facts: cold %d, after a hit %d, one wrong block %d, zeroed %d\n",
              facts.size(), cold_right, hit_right, wrong_right, zero_right);

  const auto count = static_cast<int>(facts.size());
  EXPECT_GE(cold_right * 2, count) << "the model recalls too little for this test to say anything";
  EXPECT_GE(hit_right * 10, cold_right * 9);
  EXPECT_LE(wrong_right * 10, cold_right);
  EXPECT_LE(zero_right * 20, count);
}

}  // namespace
}  // namespace millrace::tests::quality
