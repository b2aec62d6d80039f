#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/str_cat.h"
#include "dataplane/engine/engine.h"
#include "dataplane/sampling/sampler.h"
#include "dataplane/scheduler/scheduler.h"

// For the tests of this folder: an engine whose logits are a hash of all tokens so far, so that any
// mistake in what it is fed shows in the text. So are its blocks and windows: of the tokens up to
// their end. What was brought in from elsewhere and is not that spoils the text.

namespace millrace::dataplane::worker {

/// What tests look at and change from other threads.
struct TestEngineControls {
  std::atomic<int> sequences{0};
  std::atomic<int> steps{0};
  std::atomic<int> step_ms{0};          ///< how long a step takes
  std::atomic<bool> is_failing{false};  ///< steps fail
  std::atomic<bool> is_stopped{false};  ///< a step does not end before this is false
};

class TestEngine final : public engine::Engine {
 public:
  static constexpr int kVocab = 50;
  static constexpr int kMaxPosition = 4000;
  static constexpr std::size_t kBlockBytes = 64;

  TestEngine(std::shared_ptr<TestEngineControls> controls, int kv_blocks,
             std::string layout = "test-layout")
      : controls_(std::move(controls)), kv_blocks_(kv_blocks), layout_(std::move(layout)) {}

  static std::vector<float> logits_after(std::span<const TokenId> tokens) {
    std::uint64_t hash = 0x9e3779b97f4a7c15u;
    for (const TokenId token : tokens) hash = mix(hash ^ static_cast<std::uint64_t>(token));
    std::vector<float> logits(kVocab);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      logits[i] = static_cast<float>(mix(hash + i) % 4096) / 512.0f;
    }
    return logits;
  }

  int vocab_size() const override { return kVocab; }
  int max_position() const override { return kMaxPosition; }
  int window() const override { return 128; }
  const std::string& kv_layout_id() const override { return layout_; }
  engine::EngineUsage usage() const override {
    engine::EngineUsage usage{.sequences = static_cast<int>(sequences_.size()),
                              .kv_blocks_total = kv_blocks_};
    for (const auto& [id, s] : sequences_)
      usage.kv_blocks_used += scheduler::blocks_for(s.capacity);
    return usage;
  }

  absl::StatusOr<engine::SequenceId> create(const engine::SequencePlan& plan) override {
    if (usage().kv_blocks_used + scheduler::blocks_for(plan.capacity_tokens) > kv_blocks_) {
      return absl::ResourceExhaustedError("no blocks");
    }
    ++controls_->sequences;
    Sequence& sequence = sequences_[next_];
    sequence.capacity = plan.capacity_tokens;
    sequence.tokens.assign(plan.prefix_tokens.begin(), plan.prefix_tokens.end());
    sequence.prompt = plan.prompt_tokens;
    sequence.write_floor = plan.write_floor;
    sequence.planned_anchor = plan.window_anchor;
    sequence.lacks_window = plan.has_window;
    return next_++;
  }
  void release(engine::SequenceId sequence) override {
    CHECK(sequences_.erase(sequence) == 1);
    --controls_->sequences;
  }
  int length(engine::SequenceId sequence) const override {
    return static_cast<int>(sequences_.at(sequence).tokens.size());
  }

  absl::Status step(std::span<const engine::StepItem> items, std::vector<float>& logits) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(controls_->step_ms.load()));
    while (controls_->is_stopped) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++controls_->steps;
    if (controls_->is_failing) return absl::InternalError("told to fail");
    logits.clear();
    for (const engine::StepItem& item : items) {
      Sequence& sequence = sequences_.at(item.sequence);
      sequence.tokens.insert(sequence.tokens.end(), item.tokens.begin(), item.tokens.end());
      CHECK(sequence.tokens.size() <= static_cast<std::size_t>(sequence.capacity));
      CHECK(item.logits_rows <= 1);
      keep(sequence, static_cast<int>(item.tokens.size()));
      if (item.logits_rows == 0) continue;
      const std::vector<float> row =
          logits_after(is_whole(sequence) ? sequence.tokens : std::vector<TokenId>{});
      logits.insert(logits.end(), row.begin(), row.end());
    }
    return absl::OkStatus();
  }

  /// What a stored block or window holds that ends behind these tokens.
  static std::vector<std::byte> bytes_for(std::span<const TokenId> tokens) {
    std::uint64_t hash = 17;
    for (const TokenId token : tokens) hash = mix(hash ^ static_cast<std::uint64_t>(token));
    std::vector<std::byte> bytes(kBlockBytes);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(mix(hash + i) >> 56);
    return bytes;
  }

  std::size_t block_bytes() const override { return kBlockBytes; }
  std::span<std::byte> block(engine::SequenceId sequence, int index) override {
    block_ = bytes_for(first(sequences_.at(sequence), (index + 1) * scheduler::kBlockTokens));
    return block_;
  }
  void swap_in(engine::SequenceId id, int blocks,
               std::shared_ptr<engine::BlockSource> source) override {
    Sequence& sequence = sequences_.at(id);
    for (int i = 0; i < blocks && sequence.swap_status.ok(); ++i) {
      std::vector<std::byte>& block = sequence.stored.emplace_back(kBlockBytes);
      for (const std::size_t part : {std::size_t{0}, kBlockBytes / 2}) {
        if (!sequence.swap_status.ok()) break;
        sequence.swap_status =
            source->copy(i, part, std::span(block).subspan(part, kBlockBytes / 2));
      }
    }
  }
  absl::Status swap_in_status(engine::SequenceId sequence) const override {
    return sequences_.at(sequence).swap_status;
  }
  engine::SwapInUsage swap_in_usage() const override { return {}; }
  std::size_t window_bytes() const override { return kBlockBytes; }
  absl::Status restore_window(engine::SequenceId id, std::span<const std::byte> window) override {
    Sequence& sequence = sequences_.at(id);
    sequence.lacks_window = !std::ranges::equal(window, bytes_for(sequence.tokens));
    return absl::OkStatus();
  }
  int kept_anchor(engine::SequenceId sequence) const override {
    return sequences_.at(sequence).kept_anchor;
  }
  void export_window(engine::SequenceId id, std::span<std::byte> out) const override {
    const Sequence& sequence = sequences_.at(id);
    std::ranges::copy(bytes_for(first(sequence, sequence.kept_anchor)), out.begin());
  }

  std::size_t export_bytes(engine::SequenceId sequence) const override {
    return sizeof(TokenId) * sequences_.at(sequence).tokens.size();
  }
  absl::Status export_to(engine::SequenceId sequence, std::span<std::byte> out) const override {
    std::memcpy(out.data(), sequences_.at(sequence).tokens.data(), out.size());
    return absl::OkStatus();
  }
  absl::StatusOr<engine::SequenceId> import_from(std::span<const std::byte> bytes,
                                                 int capacity_tokens) override {
    engine::SequencePlan plan;
    plan.capacity_tokens = capacity_tokens;
    auto id = create(plan);
    if (!id.ok()) return id;
    std::vector<TokenId>& tokens = sequences_.at(*id).tokens;
    sequences_.at(*id).prompt = static_cast<int>(bytes.size() / sizeof(TokenId));
    tokens.resize(bytes.size() / sizeof(TokenId));
    std::memcpy(tokens.data(), bytes.data(), bytes.size());
    return id;
  }

 private:
  struct Sequence {
    int capacity = 0;
    std::vector<TokenId> tokens;
    int prompt = 0, write_floor = 0, planned_anchor = 0, kept_anchor = 0;
    std::vector<std::vector<std::byte>> stored;  // blocks that were swapped in
    bool lacks_window = false;
    absl::Status swap_status = absl::OkStatus();
  };

  static std::span<const TokenId> first(const Sequence& sequence, int tokens) {
    return std::span(sequence.tokens).first(static_cast<std::size_t>(tokens));
  }

  /// Whether it has everything below its write floor, as a run from the start would have made it.
  static bool is_whole(const Sequence& sequence) {
    const auto blocks = static_cast<std::size_t>(sequence.write_floor / scheduler::kBlockTokens);
    if (sequence.lacks_window || sequence.stored.size() != blocks) return false;
    for (std::size_t i = 0; i < blocks; ++i) {
      const int end = static_cast<int>(i + 1) * scheduler::kBlockTokens;
      if (sequence.stored[i] != bytes_for(first(sequence, end))) return false;
    }
    return true;
  }

  /// See Engine::kept_anchor().
  static void keep(Sequence& sequence, int rows) {
    const int end = static_cast<int>(sequence.tokens.size());
    if (sequence.planned_anchor > 0 && end >= sequence.planned_anchor) {
      sequence.kept_anchor = std::exchange(sequence.planned_anchor, 0);
    }
    const int passed = end / scheduler::kBlockTokens * scheduler::kBlockTokens;
    if (end > sequence.prompt && end - passed < rows && rows < 7) sequence.kept_anchor = passed;
  }

  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  std::shared_ptr<TestEngineControls> controls_;
  const int kv_blocks_;
  const std::string layout_;
  std::map<engine::SequenceId, Sequence> sequences_;
  std::vector<std::byte> block_;  // that was asked for last
  engine::SequenceId next_ = 1;
};

/// The text that one process would generate from these tokens, without any worker.
inline std::vector<TokenId> expected_text(std::vector<TokenId> tokens, int prompt_tokens,
                                          const sampling::SamplingParams& params,
                                          const std::vector<TokenId>& stops) {
  sampling::SamplerScratch scratch;
  std::vector<TokenId> text(tokens.begin() + prompt_tokens, tokens.end());
  while (static_cast<int>(text.size()) < params.max_new_tokens) {
    std::vector<float> logits = TestEngine::logits_after(tokens);
    if (static_cast<int>(text.size()) < params.min_new_tokens) {
      for (const TokenId stop : stops) logits[static_cast<std::size_t>(stop)] = -1e30F;
    }
    const auto sample = sampling::sample(
        logits, params, sampling::TokenCounts(tokens, prompt_tokens), tokens.size(), scratch);
    CHECK(sample.ok());
    tokens.push_back(sample->token);
    text.push_back(sample->token);
    if (std::find(stops.begin(), stops.end(), sample->token) != stops.end()) break;
  }
  return text;
}

}  // namespace millrace::dataplane::worker
