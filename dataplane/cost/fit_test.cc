#include "dataplane/cost/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "common/str_cat.h"
#include "dataplane/cost/fit_window.h"

namespace millrace::dataplane::cost {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

const CostModel kTrue{.quadratic = 0.004,
                      .cross = 0.008,
                      .linear = 21'000,
                      .fixed = 1'500'000,
                      .tail = 45'000,
                      .tail_cross = 0.7};

PrefillSample step(const CostModel& model, std::mt19937_64& random, double noise) {
  PrefillSample sample;
  const int chunks = 1 + static_cast<int>(random() % 3);
  double ns = 0;
  for (int i = 0; i < chunks; ++i) {
    const auto rows = static_cast<std::int64_t>(1 + random() % 8192);
    const auto cached = static_cast<std::int64_t>(random() % 200'000);
    // The last of its prompt, or not, or with a part of the tail.
    const auto prompt = cached + rows + static_cast<std::int64_t>(random() % 3 * 64);
    sample.add(chunk_at(rows, cached, prompt));
    ns += chunk_cost_ns(model, chunk_at(rows, cached, prompt));
  }
  sample.ns = ns * (1 + noise * std::normal_distribution(0.0, 1.0)(random));
  return sample;
}

std::vector<PrefillSample> steps(const CostModel& model, int count, double noise,
                                 unsigned seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<PrefillSample> samples;
  samples.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) samples.push_back(step(model, random, noise));
  return samples;
}

TEST(FitPrefill, FindsTheModelThatMadeTheSteps) {
  const auto fit = fit_prefill(steps(kTrue, 200, 0));
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_NEAR(fit->model.quadratic, kTrue.quadratic, 1e-6);
  EXPECT_NEAR(fit->model.cross, kTrue.cross, 1e-7);
  EXPECT_NEAR(fit->model.linear, kTrue.linear, 1);
  EXPECT_NEAR(fit->model.fixed, kTrue.fixed, 1'000);
  EXPECT_NEAR(fit->model.tail, kTrue.tail, 10);
  EXPECT_NEAR(fit->model.tail_cross, kTrue.tail_cross, 1e-4);
  EXPECT_EQ(fit->quality.rejected, 0);
}

TEST(FitPrefill, IsNotMovedByStalls) {
  std::vector<PrefillSample> samples = steps(kTrue, 300, 0.01);
  for (std::size_t i = 0; i < samples.size(); i += 10) samples[i].ns *= 7;  // a tenth of them
  const auto fit = fit_prefill(samples);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_GE(fit->quality.rejected, 30);
  EXPECT_LE(fit->quality.rejected, 33);
  EXPECT_LT(mean_relative_error(fit->model, steps(kTrue, 200, 0, 2)), 0.01);
}

TEST(FitPrefill, MatchesASearchOverTheConstraint) {
  // Time that falls with q c cannot be described by a cost: the best cost has no such term. That
  // no other non-negative model is better is checked by trying its neighbours.
  std::mt19937_64 random(3);
  std::vector<PrefillSample> samples;
  for (int i = 0; i < 100; ++i) {
    PrefillSample sample;
    const auto rows = static_cast<std::int64_t>(100 + random() % 1000);
    const auto cached = static_cast<std::int64_t>(random() % 1000);
    sample.add(chunk_at(rows, cached, cached + rows + kTailRows));
    sample.ns = 1e6 + 1000.0 * static_cast<double>(rows) -
                0.05 * static_cast<double>(rows) * static_cast<double>(cached);
    samples.push_back(sample);
  }
  const auto fit = fit_prefill(samples);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_EQ(fit->quality.rejected, 0);
  EXPECT_EQ(fit->model.cross, 0);
  EXPECT_THAT(fit->quality.left_out, Contains("cross"));
  const auto loss = [&](const CostModel& m) {
    double sum = 0;
    for (const PrefillSample& s : samples) {
      const double predicted = predicted_ns(m, s);
      sum += (predicted / s.ns - 1) * (predicted / s.ns - 1);
    }
    return sum;
  };
  const double best = loss(fit->model);
  for (const double step : {1e-4, 1e-2}) {
    for (double CostModel::*term :
         {&CostModel::quadratic, &CostModel::cross, &CostModel::linear, &CostModel::fixed}) {
      for (const double sign : {-1.0, 1.0}) {
        CostModel moved = fit->model;
        moved.*term += sign * step * std::max(moved.*term, 1e-3);
        if (moved.*term >= 0) {
          EXPECT_GE(loss(moved), best * (1 - 1e-9));
        }
      }
    }
  }
}

TEST(FitPrefill, StepsOfOneShapeStillGiveAModelForThatShape) {
  PrefillSample sample;
  sample.add(chunk_at(512, 0, 512));
  sample.ns = 4e6;
  const std::vector<PrefillSample> samples(20, sample);
  const auto fit = fit_prefill(samples);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_NEAR(chunk_cost_ns(fit->model, chunk_at(512, 0, 512)), 4e6, 1);
  EXPECT_EQ(fit->quality.left_out.size(), 5U);
  // What it has not seen it takes to be in proportion to rows.
  EXPECT_NEAR(chunk_cost_ns(fit->model, chunk_at(256, 0, 256)), 2e6, 1);
}

TEST(FitPrefill, OfShortPromptsAloneTakesTheirRowsToBeLikeAnyOthers) {
  // All rows of such prompts are in the tail: what is dear about it cannot be told from the rest.
  std::vector<PrefillSample> samples;
  samples.reserve(50);
  for (std::int64_t rows = 10; rows < 60; ++rows) {
    PrefillSample sample;
    sample.add(chunk_at(rows, 0, rows));
    sample.ns = chunk_cost_ns(kTrue, chunk_at(rows, 0, rows));
    samples.push_back(sample);
  }
  const auto fit = fit_prefill(samples);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_EQ(fit->model.tail, 0);
  EXPECT_NEAR(fit->model.linear, kTrue.linear + kTrue.tail, 100);
  EXPECT_LT(mean_relative_error(fit->model, samples), 1e-4);
}

TEST(FitPrefill, RefusesWhatIsNoMeasurement) {
  std::vector<PrefillSample> samples = steps(kTrue, 20, 0);
  samples[4].ns = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(std::string(message_of(fit_prefill(samples).status())), HasSubstr("sample 4"));
  samples[4].ns = -5;
  EXPECT_EQ(fit_prefill(samples).status().code(), absl::StatusCode::kInvalidArgument);
  samples[4].ns = 0;
  EXPECT_EQ(fit_prefill(samples).status().code(), absl::StatusCode::kInvalidArgument);
  samples[4] = samples[3];
  samples[7].rows = -1;
  EXPECT_THAT(std::string(message_of(fit_prefill(samples).status())), HasSubstr("linear is -1"));
  samples.resize(7);
  samples.resize(kMinFitSamples - 1);
  EXPECT_EQ(fit_prefill(samples).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(FitDecode, FindsTheModelThatMadeTheSteps) {
  const DecodeCostModel truth{2e6, 40'000, 1.5};
  std::mt19937_64 random(5);
  std::vector<DecodeSample> samples;
  for (int i = 0; i < 200; ++i) {
    const auto batch = static_cast<std::int64_t>(1 + random() % 64);
    const auto kv = batch * static_cast<std::int64_t>(random() % 30'000);
    samples.push_back({static_cast<double>(batch), static_cast<double>(kv),
                       decode_step_ns(truth, batch, kv) * (i % 20 == 0 ? 3 : 1)});
  }
  const auto fit = fit_decode(samples);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_NEAR(fit->model.fixed, truth.fixed, 1'000);
  EXPECT_NEAR(fit->model.per_request, truth.per_request, 50);
  EXPECT_NEAR(fit->model.per_kv_token, truth.per_kv_token, 0.01);
  EXPECT_EQ(fit->quality.rejected, 10);
}

TEST(FitWindow, IsBoundedAndKeepsWhatRareStepsShowed) {
  FitWindow window;
  EXPECT_EQ(window.refit().status().code(), absl::StatusCode::kFailedPrecondition);
  for (const PrefillSample& sample : steps(kTrue, 200, 0)) EXPECT_TRUE(window.add(sample));
  const int varied = window.size();
  PrefillSample small;
  small.add(chunk_at(1, 0, 1));
  small.ns = chunk_cost_ns(kTrue, chunk_at(1, 0, 1));
  for (int i = 0; i < 10'000; ++i) window.add(small);
  EXPECT_LE(window.size(), varied + FitWindow::kSamplesPerStratum);
  EXPECT_LE(window.size(), FitWindow::kStrata * FitWindow::kSamplesPerStratum);
  const auto fit = window.refit();
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_LT(mean_relative_error(fit->model, steps(kTrue, 100, 0, 9)), 0.01);
}

TEST(FitWindow, FollowsAMachineThatHasBecomeSlower) {
  FitWindow window;
  for (const PrefillSample& sample : steps(kTrue, 500, 0.01)) window.add(sample);
  EXPECT_FALSE(window.is_better(kTrue, window.refit()->model));
  CostModel slower = kTrue;
  for (const Coefficient& c : kCoefficients) slower.*c.value *= 2;
  for (const PrefillSample& sample : steps(slower, 3'000, 0.01)) window.add(sample);
  const auto fit = window.refit();
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_TRUE(window.is_better(kTrue, fit->model));
  EXPECT_LT(mean_relative_error(fit->model, steps(slower, 100, 0, 9)), 0.02);
}

TEST(FitWindow, ForgetsStepsOfALengthThatComesNoMore) {
  FitWindow window;
  // A slow start: steps a hundred times as long as any that follow.
  CostModel slow = kTrue;
  for (const Coefficient& c : kCoefficients) slow.*c.value *= 100;
  for (const PrefillSample& sample : steps(slow, 200, 0)) window.add(sample);
  const int slow_ones = window.size();
  const auto usual = steps(kTrue, 100, 0, 4);
  for (const PrefillSample& sample : usual) window.add(sample);
  EXPECT_GT(window.size(), slow_ones);
  for (std::uint64_t i = 0; i < FitWindow::kMaxAge; ++i) window.add(usual[i % usual.size()]);
  const auto fit = window.refit();
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_EQ(fit->quality.rejected, 0) << "none of the slow steps is left";
  EXPECT_LT(mean_relative_error(fit->model, steps(kTrue, 100, 0, 9)), 0.001);
}

TEST(FitWindow, DropsWhatIsNoMeasurement) {
  FitWindow window;
  PrefillSample sample;
  sample.add(chunk_at(5, 0, 5));
  EXPECT_FALSE(window.add(sample));  // took no time
  sample.ns = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(window.add(sample));
  sample.ns = 1;
  sample.rows = -1;
  EXPECT_FALSE(window.add(sample));
  EXPECT_EQ(window.size(), 0);
}

}  // namespace
}  // namespace millrace::dataplane::cost
