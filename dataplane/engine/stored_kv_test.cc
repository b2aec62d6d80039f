// Beginning a sequence from stored blocks and windows instead of from its first token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "dataplane/engine/engine_rig.h"
#include "dataplane/kv/hit_policy.h"
#include "dataplane/kv/ring.h"

namespace millrace::dataplane::engine {
namespace {

using Bytes = std::vector<std::byte>;

/// Blocks in memory, handed out part by part; remembers in which order.
class MemorySource : public BlockSource {
 public:
  explicit MemorySource(std::vector<Bytes> blocks) : blocks_(std::move(blocks)) {}

  absl::Status copy(int block, std::size_t offset, std::span<std::byte> out) override {
    if (delay_.count() > 0) std::this_thread::sleep_for(delay_);
    std::lock_guard lock(mutex_);
    if (calls_.size() >= fail_after_) return absl::AbortedError("the slot was used anew");
    calls_.emplace_back(block, offset);
    std::ranges::copy(
        std::span(blocks_[static_cast<std::size_t>(block)]).subspan(offset, out.size()),
        out.begin());
    return absl::OkStatus();
  }

  void fail_after(std::size_t parts) { fail_after_ = parts; }
  void take(std::chrono::milliseconds delay) { delay_ = delay; }
  std::vector<std::pair<int, std::size_t>> calls() const {
    std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  const std::vector<Bytes> blocks_;
  mutable std::mutex mutex_;
  std::vector<std::pair<int, std::size_t>> calls_;
  std::size_t fail_after_ = SIZE_MAX;
  std::chrono::milliseconds delay_{0};
};

class StoredKvTest : public testing::Test, public EngineRig {
 protected:
  /// A sequence that ran all tokens of a prompt, cut into steps of `chunk` rows, and what it left.
  struct Run {
    std::vector<float> logits;
    std::vector<Bytes> blocks;  // the full ones
    Bytes window;               // at anchor_after(prompt)
    int anchor = 0;
  };
  static Run run_cold(Engine& engine, std::span<const TokenId> prompt, int chunk = 512) {
    const int length = static_cast<int>(prompt.size());
    const int anchor = kv::anchor_after(length);
    const auto id = engine.create(
        {.prompt_tokens = length, .capacity_tokens = length, .window_anchor = anchor});
    EXPECT_TRUE(id.ok()) << id.status();
    Run run = finish(engine, *id, prompt, chunk);
    engine.release(*id);
    return run;
  }

  /// Runs the rest of a prompt and takes what is left.
  static Run finish(Engine& engine, SequenceId id, std::span<const TokenId> prompt, int chunk) {
    Run run;
    const int length = static_cast<int>(prompt.size());
    while (engine.length(id) < length) {
      const auto at = static_cast<std::size_t>(engine.length(id));
      const auto rows = std::min(prompt.size() - at, static_cast<std::size_t>(chunk));
      run.logits = step(engine, id, prompt.subspan(at, rows), at + rows == prompt.size() ? 1 : 0);
    }
    for (int i = 0; i < length / kv::kBlockTokens; ++i) {
      const auto block = engine.block(id, i);
      run.blocks.emplace_back(block.begin(), block.end());
    }
    run.anchor = engine.kept_anchor(id);
    run.window = kept_window(engine, id);
    return run;
  }

  static Bytes kept_window(Engine& engine, SequenceId id) {
    Bytes window;
    if (engine.kept_anchor(id) == 0) return window;
    window.resize(engine.window_bytes());
    engine.export_window(id, window);
    return window;
  }

  /// The encoder layers' window rows in the hand-over of a sequence that stands at this length:
  /// what the rings of an uninterrupted run hold there (engine/handover.h draws the bytes).
  static Bytes window_of_rings(Engine& engine, std::span<const TokenId> tokens) {
    const int length = static_cast<int>(tokens.size());
    const auto id = create(engine, length + 200, length + 200);
    for (std::size_t at = 0; at < tokens.size(); at += 100) {
      step(engine, id, tokens.subspan(at, std::min<std::size_t>(100, tokens.size() - at)), 0);
    }
    const Bytes all = exported(engine, id);
    const std::size_t block_bytes = engine.block(id, 0).size();
    engine.release(id);
    std::uint32_t header = 0;
    std::memcpy(&header, all.data() + 12, sizeof header);
    const std::size_t begin =
        header + tokens.size() * 4 + static_cast<std::size_t>(kv::blocks_for(length)) * block_bytes;
    const auto window = std::span(all).subspan(begin, engine.window_bytes());
    return {window.begin(), window.end()};
  }

  static absl::StatusOr<SequenceId> create_from(Engine& engine, std::span<const TokenId> prompt,
                                                const kv::HitPlan& plan) {
    const int length = static_cast<int>(prompt.size());
    return engine.create(
        {.prompt_tokens = length,
         .capacity_tokens = length,
         .compute_start = plan.compute_start,
         .write_floor = plan.write_floor,
         .prefix_tokens = prompt.first(static_cast<std::size_t>(plan.compute_start)),
         .has_window = plan.window_anchor > 0,
         .window_anchor = kv::anchor_after(length)});
  }

  /// The prompt from stored blocks and, if it is not empty, a stored window.
  static Run run_hit(Engine& engine, std::span<const TokenId> prompt, const kv::HitPlan& plan,
                     const std::vector<Bytes>& blocks, const Bytes& window, int chunk = 512) {
    const auto id = create_from(engine, prompt, plan);
    EXPECT_TRUE(id.ok()) << id.status();
    if (plan.window_anchor > 0) {
      EXPECT_TRUE(engine.restore_window(*id, window).ok());
    }
    const int stored = plan.write_floor / kv::kBlockTokens;
    engine.swap_in(*id, stored,
                   std::make_shared<MemorySource>(
                       std::vector<Bytes>(blocks.begin(), blocks.begin() + stored)));
    Run run = finish(engine, *id, prompt, chunk);
    EXPECT_TRUE(engine.swap_in_status(*id).ok());
    engine.release(*id);
    return run;
  }
};

TEST_F(StoredKvTest, AWindowKeptOnTheWayIsTheOneOfTheRings) {
  for (const Switch rounding : {Switch::kOn, Switch::kOff}) {
    const auto engine = open({.rounding = rounding});
    for (const int length : {129, 130, 200, 255, 256, 257, 262, 385, 400, 512, 513}) {
      const std::vector<TokenId> prompt = tokens(length, static_cast<unsigned>(length));
      const int anchor = kv::anchor_after(length);
      const Bytes expected =
          window_of_rings(*engine, std::span(prompt).first(static_cast<std::size_t>(anchor)));
      for (const int chunk : {512, 128, 100, 7, 1}) {
        if (chunk == 1 && length > 300) continue;  // slow, and the same as 7
        const Run run = run_cold(*engine, prompt, chunk);
        EXPECT_EQ(run.anchor, anchor);
        EXPECT_EQ(run.window, expected) << length << " tokens in steps of " << chunk;
      }
    }
  }
}

TEST_F(StoredKvTest, DecodingKeepsTheWindowOfEachBoundaryHoweverFarAStepGoesBeyond) {
  const auto engine = open();
  const std::vector<TokenId> all = tokens(520, 3);
  std::map<int, Bytes> expected;
  for (const int anchor : {256, 384, 512}) {
    expected[anchor] =
        window_of_rings(*engine, std::span(all).first(static_cast<std::size_t>(anchor)));
  }
  for (int overshoot = 0; overshoot <= 5; ++overshoot) {
    const auto id = create(*engine, 200, 520);
    step(*engine, id, std::span(all).first(200), 1);
    EXPECT_EQ(engine->kept_anchor(id), 0) << "the plan named no anchor";
    // Single rows up to five before a boundary, then a step that goes beyond.
    const auto go_on = [&](int rows) {
      step(*engine, id,
           std::span(all).subspan(static_cast<std::size_t>(engine->length(id)),
                                  static_cast<std::size_t>(rows)),
           1);
    };
    for (const int anchor : {256, 384, 512}) {
      while (engine->length(id) < anchor - 1) go_on(1);
      go_on(1 + overshoot);
      ASSERT_EQ(engine->kept_anchor(id), anchor) << overshoot;
      EXPECT_EQ(kept_window(*engine, id), expected[anchor]) << anchor << " + " << overshoot;
      // It stays as it is until the next one is complete.
      go_on(1);
      EXPECT_EQ(kept_window(*engine, id), expected[anchor]) << anchor << " + " << overshoot;
    }
    engine->release(id);
  }
}

TEST_F(StoredKvTest, AHandedOverSequenceKeepsTheWindowsBehindItsPrompt) {
  const auto prefill = open(), decode = open();
  for (const int length : {255, 256, 257, 300}) {
    const std::vector<TokenId> all = tokens(400, static_cast<unsigned>(length));
    const auto source = create(*prefill, length, length);
    step(*prefill, source, std::span(all).first(static_cast<std::size_t>(length)), 1);
    const auto id = decode->import_from(exported(*prefill, source), 400);
    prefill->release(source);
    ASSERT_TRUE(id.ok()) << id.status();
    for (int at = length; at < 400; ++at) {
      step(*decode, *id, std::span(all).subspan(static_cast<std::size_t>(at), 1), 1);
      const int passed = (at + 1) / 128 * 128;
      // The window of the last boundary inside the prompt is the prefill's to keep.
      ASSERT_EQ(decode->kept_anchor(*id), passed > kv::anchor_after(length) ? passed : 0)
          << length << " + " << at;
    }
    EXPECT_EQ(kept_window(*decode, *id), window_of_rings(*prefill, std::span(all).first(384)));
    decode->release(*id);
  }
}

TEST_F(StoredKvTest, AHitWithItsWindowGivesTheBitsOfAColdRun) {
  for (const Switch rounding : {Switch::kOn, Switch::kOff}) {
    const auto engine = open({.rounding = rounding});
    for (const int length : {262, 263, 300, 389, 390, 512, 520}) {
      const std::vector<TokenId> prompt = tokens(length, static_cast<unsigned>(length));
      const Run cold = run_cold(*engine, prompt);
      const int hit = kv::usable_hit(length, length);
      // An earlier turn that ended a little behind the hit left the window there.
      const Run earlier =
          run_cold(*engine, std::span(prompt).first(static_cast<std::size_t>(hit) + 3));
      ASSERT_EQ(earlier.anchor, hit);
      const kv::HitPlan plan = kv::plan_hit(length, length, true, false);
      for (const int chunk : {512, 50}) {
        const Run warm = run_hit(*engine, prompt, plan, cold.blocks, earlier.window, chunk);
        EXPECT_TRUE(same_bits(warm.logits, cold.logits)) << length << " in steps of " << chunk;
        EXPECT_EQ(warm.blocks, cold.blocks) << length;
        EXPECT_EQ(warm.window, cold.window) << length;
      }
    }
    EXPECT_EQ(engine->usage().kv_blocks_used, 0);
  }
}

TEST_F(StoredKvTest, AnExactReplayGivesTheBitsOfAColdRunAndWritesNothingBelowTheHit) {
  const auto engine = open();
  for (const int length : {390, 400, 512, 520}) {
    const std::vector<TokenId> prompt = tokens(length, static_cast<unsigned>(length));
    const Run cold = run_cold(*engine, prompt);
    const int hit = kv::usable_hit(length, length);
    const Run earlier =
        run_cold(*engine, std::span(prompt).first(static_cast<std::size_t>(hit) - 127));
    ASSERT_EQ(earlier.anchor, hit - 128);
    const Run warm = run_hit(*engine, prompt, kv::plan_hit(length, length, false, true),
                             cold.blocks, earlier.window, 60);
    EXPECT_TRUE(same_bits(warm.logits, cold.logits)) << length;
    EXPECT_EQ(warm.blocks, cold.blocks);
    EXPECT_EQ(warm.window, cold.window);
  }
}

/// A window of 8 positions reaches back 7 in every layer: after 7 rows for each of the few encoder
/// layers a row no longer depends on what the truncated window left out, as global entries are the
/// stored ones. So behind the 128 replayed rows every bit is that of the cold run.
TEST_F(StoredKvTest, ATruncatedReplayIsExactWhereItsWindowNoLongerReaches) {
  const auto engine = open();
  for (const int length : {390, 520}) {
    const std::vector<TokenId> prompt = tokens(length, static_cast<unsigned>(length));
    const Run cold = run_cold(*engine, prompt);
    const kv::HitPlan plan = kv::plan_hit(length, length, false, false);
    ASSERT_EQ(plan.kind, kv::ReplayKind::kTruncated);
    const Run warm = run_hit(*engine, prompt, plan, cold.blocks, {});
    EXPECT_TRUE(same_bits(warm.logits, cold.logits)) << length;
    EXPECT_EQ(warm.blocks, cold.blocks);
  }
}

TEST_F(StoredKvTest, TheResultDependsOnWhatWasStored) {
  const auto engine = open();
  const std::vector<TokenId> prompt = tokens(400, 1);
  const Run cold = run_cold(*engine, prompt);
  const Run earlier = run_cold(*engine, std::span(prompt).first(257));
  const kv::HitPlan plan = kv::plan_hit(400, 400, true, false);
  std::vector<Bytes> blocks = cold.blocks;
  blocks[0].assign(blocks[0].size(), std::byte{0});
  EXPECT_FALSE(
      same_bits(run_hit(*engine, prompt, plan, blocks, earlier.window).logits, cold.logits))
      << "a zeroed block must show";
  Bytes window = earlier.window;
  window.assign(window.size(), std::byte{0});
  const Run without = run_hit(*engine, prompt, plan, cold.blocks, window);
  EXPECT_NE(without.blocks, cold.blocks) << "a zeroed window must show";
}

TEST_F(StoredKvTest, PartsComeInLayerByLayerAndALayerWaitsForItsOwn) {
  const auto engine = open();
  const std::vector<TokenId> prompt = tokens(400, 2);
  const Run cold = run_cold(*engine, prompt);
  const kv::HitPlan plan = kv::plan_hit(400, 400, false, false);
  const auto id = create_from(*engine, prompt, plan);
  ASSERT_TRUE(id.ok()) << id.status();
  const auto source = std::make_shared<MemorySource>(
      std::vector<Bytes>(cold.blocks.begin(), cold.blocks.begin() + 2));
  source->take(std::chrono::milliseconds(20));
  engine->swap_in(*id, 2, source);
  const Run warm = finish(*engine, *id, prompt, 512);
  EXPECT_TRUE(same_bits(warm.logits, cold.logits));
  const auto calls = source->calls();
  ASSERT_GT(calls.size(), 2u);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].first, static_cast<int>(i % 2)) << "both blocks of a part, then the next";
    if (i < 2) continue;
    EXPECT_GT(calls[i].second, calls[i - 2].second) << "parts in the order of layers";
  }
  const SwapInUsage usage = engine->swap_in_usage();
  EXPECT_EQ(usage.blocks, 2u);
  EXPECT_GT(usage.wait_seconds, 0.0) << "the source was slower than the layers";
  EXPECT_GE(usage.copy_seconds, usage.wait_seconds);
  engine->release(*id);
}

TEST_F(StoredKvTest, ASourceThatFailsIsToldAndLeavesNothing) {
  const auto engine = open();
  const std::vector<TokenId> prompt = tokens(400, 4);
  const Run cold = run_cold(*engine, prompt);
  for (const std::size_t parts : {0u, 1u, 3u}) {
    const auto id = create_from(*engine, prompt, kv::plan_hit(400, 400, false, false));
    ASSERT_TRUE(id.ok()) << id.status();
    const auto source = std::make_shared<MemorySource>(
        std::vector<Bytes>(cold.blocks.begin(), cold.blocks.begin() + 2));
    source->fail_after(parts);
    engine->swap_in(*id, 2, source);
    finish(*engine, *id, prompt, 512);
    EXPECT_EQ(engine->swap_in_status(*id).code(), absl::StatusCode::kAborted);
    engine->release(*id);
    EXPECT_EQ(engine->usage().kv_blocks_used, 0);
  }
  // What comes next in the same place is not touched by it.
  EXPECT_TRUE(same_bits(run_cold(*engine, prompt).logits, cold.logits));
}

TEST_F(StoredKvTest, ASequenceMayBeReleasedWhileItsBlocksAreOnTheirWay) {
  const auto engine = open();
  const std::vector<TokenId> prompt = tokens(400, 5);
  const Run cold = run_cold(*engine, prompt);
  for (int i = 0; i < 20; ++i) {
    const auto id = create_from(*engine, prompt, kv::plan_hit(400, 400, false, false));
    ASSERT_TRUE(id.ok()) << id.status();
    const auto source = std::make_shared<MemorySource>(
        std::vector<Bytes>(cold.blocks.begin(), cold.blocks.begin() + 2));
    source->take(std::chrono::milliseconds(1));
    engine->swap_in(*id, 2, source);
    std::this_thread::sleep_for(std::chrono::microseconds(300 * i));
    engine->release(*id);
    const std::size_t calls = source->calls().size();
    EXPECT_TRUE(same_bits(run_cold(*engine, prompt).logits, cold.logits));
    EXPECT_EQ(source->calls().size(), calls) << "copied after the release";
  }
}

TEST_F(StoredKvTest, RefusesWindowsThatCannotBe) {
  const auto engine = open();
  const std::vector<TokenId> prompt = tokens(400, 6);
  const auto refusal = [&](SequencePlan plan) {
    plan.prompt_tokens = plan.capacity_tokens = 400;
    plan.prefix_tokens = std::span(prompt).first(static_cast<std::size_t>(plan.compute_start));
    return std::string(engine->create(plan).status().message());
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal({.has_window = true}), HasSubstr("no window of 8 positions"));
  EXPECT_THAT(refusal({.compute_start = 128, .write_floor = 256, .window_anchor = 135}),
              HasSubstr("window_anchor 135 must lie in [136, 400]"));
  EXPECT_THAT(refusal({.window_anchor = 401}), HasSubstr("window_anchor 401"));
  const auto id = create(*engine, 400, 400);
  EXPECT_EQ(engine->restore_window(id, Bytes(3)).code(), absl::StatusCode::kInvalidArgument);
  engine->release(id);
}

}  // namespace
}  // namespace millrace::dataplane::engine
