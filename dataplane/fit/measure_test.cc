#include "dataplane/fit/measure.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "common/check.h"
#include "dataplane/fit/plot.h"

namespace millrace::dataplane::fit {
namespace {

constexpr cost::CostModel kPrefill{4, 8, 21'000, 1'500'000, 32'000, 5};
constexpr cost::DecodeCostModel kDecode{2'000'000, 300'000, 150};

/// An engine whose steps take no time but move a clock by what a known model says.
class ClockedEngine final : public engine::Engine {
 public:
  double now_ns = 0;
  std::map<engine::SequenceId, engine::SequencePlan> plans;

  int vocab_size() const override { return 10; }
  int max_position() const override { return 1 << 20; }
  int window() const override { return 128; }
  const std::string& kv_layout_id() const override { return layout_; }
  engine::EngineUsage usage() const override { return {}; }
  absl::StatusOr<engine::SequenceId> create(const engine::SequencePlan& plan) override {
    plans[next_] = plan;
    lengths_[next_] = 0;
    return next_++;
  }
  void release(engine::SequenceId sequence) override { CHECK(plans.erase(sequence) == 1); }
  int length(engine::SequenceId sequence) const override { return lengths_.at(sequence); }
  absl::Status step(std::span<const engine::StepItem> items, std::vector<float>&) override {
    double decode_tokens = 0;
    int decoding = 0;
    for (const engine::StepItem& item : items) {
      const auto rows = static_cast<int>(item.tokens.size());
      int& length = lengths_.at(item.sequence);
      const bool is_decoding = length >= plans.at(item.sequence).prompt_tokens;
      CHECK(length + rows <= plans.at(item.sequence).capacity_tokens, "rows without room");
      if (is_decoding) {
        ++decoding;
        decode_tokens += length;
      } else {
        const int prompt = plans.at(item.sequence).prompt_tokens;
        now_ns += cost::chunk_cost_ns(kPrefill, cost::chunk_at(rows, length, prompt));
      }
      length += rows;
    }
    if (decoding > 0) {
      now_ns +=
          kDecode.fixed + kDecode.per_request * decoding + kDecode.per_kv_token * decode_tokens;
    }
    return absl::OkStatus();
  }
  void swap_in(engine::SequenceId, int, std::shared_ptr<engine::BlockSource>) override {}
  absl::Status swap_in_status(engine::SequenceId) const override { return absl::OkStatus(); }
  engine::SwapInUsage swap_in_usage() const override { return {}; }
  std::size_t window_bytes() const override { return 0; }
  absl::Status restore_window(engine::SequenceId, std::span<const std::byte>) override {
    return absl::OkStatus();
  }
  int kept_anchor(engine::SequenceId) const override { return 0; }
  void export_window(engine::SequenceId, std::span<std::byte>) const override {}
  std::size_t block_bytes() const override { return 0; }
  std::span<std::byte> block(engine::SequenceId, int) override { return {}; }
  std::size_t export_bytes(engine::SequenceId) const override { return 0; }
  absl::Status export_to(engine::SequenceId, std::span<std::byte>) const override {
    return absl::OkStatus();
  }
  absl::StatusOr<engine::SequenceId> import_from(std::span<const std::byte>, int) override {
    return absl::UnimplementedError("not imported into here");
  }

 private:
  std::string layout_ = "clocked";
  engine::SequenceId next_ = 0;
  std::map<engine::SequenceId, int> lengths_;
};

class Measuring : public testing::Test {
 protected:
  absl::StatusOr<Measured> measure(const MeasurePlan& plan) {
    return measure_costs(engine_, plan,
                         {.now_ns = [this] { return engine_.now_ns; },
                          .progress = [this](double share) { shares_.push_back(share); }});
  }

  ClockedEngine engine_;
  std::vector<double> shares_;
};

TEST_F(Measuring, FindsTheCostsOfAnEngineThatKeepsToAModel) {
  const auto measured = measure({.seconds = 30, .max_context = 2000, .max_step_rows = 128});
  ASSERT_TRUE(measured.ok()) << measured.status();
  const auto prefill = judge_prefill(*measured);
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  EXPECT_LT(prefill->held_out_error, 1e-6);
  EXPECT_NEAR(prefill->fit.model.cross, kPrefill.cross, 1e-3);
  EXPECT_NEAR(prefill->fit.model.linear, kPrefill.linear, 1);
  EXPECT_NEAR(prefill->fit.model.tail, kPrefill.tail, 1);
  EXPECT_NEAR(prefill->fit.model.tail_cross, kPrefill.tail_cross, 1e-3);
  const auto decode = judge_decode(*measured);
  ASSERT_TRUE(decode.ok()) << decode.status();
  EXPECT_LT(decode->held_out_error, 1e-6);
  EXPECT_NEAR(decode->fit.model.per_kv_token, kDecode.per_kv_token, 1e-3);
  EXPECT_GT(prefill->held_out, 10);
  EXPECT_GT(decode->held_out, 10);
  EXPECT_TRUE(engine_.plans.empty()) << "sequences were left behind";
  EXPECT_TRUE(std::is_sorted(shares_.begin(), shares_.end()));
  EXPECT_EQ(shares_.back(), 1);
}

TEST_F(Measuring, DrawsEveryStep) {
  const auto measured = measure({.seconds = 5, .max_context = 500, .max_step_rows = 64});
  ASSERT_TRUE(measured.ok()) << measured.status();
  const std::string svg = draw_fit(*measured, kPrefill, kDecode, "a < b & c");
  std::size_t dots = 0;
  for (std::size_t at = svg.find("<circle"); at != svg.npos; at = svg.find("<circle", at + 1))
    ++dots;
  EXPECT_EQ(dots, measured->prefill.size() + measured->decode.size());
  EXPECT_NE(svg.find("a &lt; b &amp; c"), svg.npos);
  EXPECT_EQ(svg.find("nan"), svg.npos);
}

TEST_F(Measuring, RefusesPlansThatMakeNoSense) {
  EXPECT_EQ(measure({.seconds = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(measure({.max_context = 10}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(measure({.max_step_rows = 8, .max_batch = 9}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::dataplane::fit
