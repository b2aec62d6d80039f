// What bounded replay costs: the distance between the exact model's next-token distributions and
// those with only the last window run again, over the forced answers of held-out tasks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "tests/quality/nano_runner.h"

namespace millrace::tests::quality {
namespace {

using dataplane::engine::Switch;
using deploy::cli::EvalTask;

std::vector<double> log_probabilities(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - largest);
  std::vector<double> result;
  result.reserve(logits.size());
  for (const float x : logits) result.push_back(x - largest - std::log(sum));
  return result;
}

/// KL(p ‖ q) in nats of the distributions behind two rows of logits.
double divergence(std::span<const float> p, std::span<const float> q) {
  const std::vector<double> log_p = log_probabilities(p), log_q = log_probabilities(q);
  double sum = 0;
  for (std::size_t i = 0; i < log_p.size(); ++i) sum += std::exp(log_p[i]) * (log_p[i] - log_q[i]);
  return sum;
}

/// Mean over prompts of the mean over the answer's tokens, and the worst of both kinds.
struct Distance {
  int prompts = 0;
  double sum = 0;
  double worst_prompt = 0;
  double worst_token = 0;

  void add(const Answer& exact, const Answer& bounded, std::size_t vocabulary) {
    double total = 0;
    const std::size_t rows = exact.logits.size() / vocabulary;
    for (std::size_t row = 0; row < rows; ++row) {
      const double kl = divergence(std::span(exact.logits).subspan(row * vocabulary, vocabulary),
                                   std::span(bounded.logits).subspan(row * vocabulary, vocabulary));
      total += kl;
      worst_token = std::max(worst_token, kl);
    }
    const double mean = total / static_cast<double>(rows);
    sum += mean;
    worst_prompt = std::max(worst_prompt, mean);
    ++prompts;
  }
  double mean() const { return sum / prompts; }
  void print(const char* name) const {
    std::printf("%-8s replay: KL mean %.5f, worst prompt %.4f, worst token %.4f, %d prompts\n",
                name, mean(), worst_prompt, worst_token, prompts);
  }
};

std::size_t prompts_wanted() {
  const char* text = std::getenv("MILLRACE_QUALITY_PROMPTS");
  return text == nullptr ? 40 : std::strtoull(text, nullptr, 10);
}

/// `count` tasks, taken evenly over the file so that every kind is among them.
std::vector<EvalTask> spread(std::vector<EvalTask> tasks, std::size_t count) {
  if (tasks.size() <= count) return tasks;
  std::vector<EvalTask> chosen;
  chosen.reserve(count);
  for (std::size_t i = 0; i < count; ++i) chosen.push_back(tasks[i * tasks.size() / count]);
  return chosen;
}

TEST(BoundedReplay, StaysCloseToTheExactModel) {
  NanoRunner exact({.decoder_replay = Switch::kOff});
  NanoRunner served({});
  const auto vocabulary = static_cast<std::size_t>(exact.vocab_size());
  const std::vector<EvalTask> tasks =
      spread(read_tasks({}, 2 * kBlockTokens + 1), prompts_wanted());
  ASSERT_GE(tasks.size(), std::min<std::size_t>(prompts_wanted(), 200));

  Distance decoder, encoder, both;
  for (const EvalTask& task : tasks) {
    const Answer reference = exact.run(task.prompt_ids, task.expect_ids);
    Hit hit{.tokens = longest_hit(task.prompt_ids.size())};
    hit.blocks.assign(reference.blocks.begin(),
                      reference.blocks.begin() + hit.tokens / kBlockTokens);
    decoder.add(reference, served.run(task.prompt_ids, task.expect_ids), vocabulary);
    encoder.add(reference, exact.run(task.prompt_ids, task.expect_ids, hit), vocabulary);
    both.add(reference, served.run(task.prompt_ids, task.expect_ids, hit), vocabulary);
  }
  decoder.print("decoder");
  encoder.print("encoder");
  both.print("both");

  // The bounds of the architecture's description; zero would mean that nothing was approximated.
  for (const Distance* distance : {&decoder, &encoder, &both}) {
    EXPECT_GT(distance->mean(), 0);
    EXPECT_LT(distance->mean(), 0.02);
  }
}

}  // namespace
}  // namespace millrace::tests::quality
