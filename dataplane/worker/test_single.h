#pragma once

#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/str_cat.h"
#include "dataplane/engine/engine.h"
#include "dataplane/model/checkpoint.h"
#include "dataplane/sampling/sampler.h"

// For the tests of this folder: a random model of the real architecture, and the texts that one
// process writes with it.

namespace millrace::dataplane::worker {

inline constexpr engine::EngineLimits kLimits{
    .kv_blocks = 64, .max_sequences = 8, .max_step_rows = 96};

/// The random model in a folder, and engines over it.
class RandomModel {
 public:
  explicit RandomModel(const std::string& folder) {
    auto result = model::Checkpoint::open(folder);
    CHECK(result.ok(), message_of(result.status()));
    checkpoint_ = *std::move(result);
  }

  int vocab_size() const { return checkpoint_->config().vocab_size; }
  std::unique_ptr<engine::Engine> open_engine() const {
    auto engine = engine::open_cpu_engine(*checkpoint_, {}, kLimits);
    CHECK(engine.ok(), message_of(engine.status()));
    return *std::move(engine);
  }

 private:
  std::unique_ptr<model::Checkpoint> checkpoint_;
};

struct Prompt {
  std::vector<TokenId> tokens;
  int max_new_tokens = 0;
  double temperature = 0;
};

/// Prompts with lengths around the window and block borders, and between; every other one is drawn
/// with a seed. Texts of about that many tokens.
inline std::vector<Prompt> make_prompts(int vocab_size, int count, int text_tokens) {
  std::mt19937 random(50);
  std::vector<Prompt> prompts;
  for (int i = 0; i < count; ++i) {
    Prompt& prompt = prompts.emplace_back();
    static constexpr std::size_t kLengths[] = {1, 2, 7, 127, 128, 129, 200, 255, 256, 257};
    prompt.tokens.resize(kLengths[static_cast<std::size_t>(i) % std::size(kLengths)]);
    for (TokenId& token : prompt.tokens) {
      token = static_cast<TokenId>(5 + random() % static_cast<unsigned>(vocab_size - 5));
    }
    prompt.max_new_tokens = text_tokens + static_cast<int>(random() % 9);
    prompt.temperature = i % 2 == 0 ? 0.0 : 0.8;
  }
  return prompts;
}

/// One process, one request at a time, the whole prompt in as few steps as its limit allows.
inline std::vector<TokenId> single_process_text(engine::Engine& engine, const Prompt& prompt) {
  sampling::SamplingParams params;
  params.temperature = prompt.temperature;
  params.seed = 17;
  engine::SequencePlan plan;
  plan.prompt_tokens = static_cast<int>(prompt.tokens.size());
  plan.capacity_tokens = plan.prompt_tokens + prompt.max_new_tokens;
  const auto sequence = engine.create(plan);
  CHECK(sequence.ok(), message_of(sequence.status()));
  std::vector<TokenId> tokens = prompt.tokens;
  std::vector<float> logits;
  sampling::SamplerScratch scratch;
  std::size_t done = 0;
  while (tokens.size() < prompt.tokens.size() + static_cast<std::size_t>(prompt.max_new_tokens)) {
    const std::size_t rows =
        std::min(tokens.size() - done, static_cast<std::size_t>(kLimits.max_step_rows));
    const bool is_last = done + rows == tokens.size();
    const engine::StepItem item{.sequence = *sequence,
                                .tokens = std::span<const TokenId>(tokens).subspan(done, rows),
                                .logits_rows = is_last ? 1 : 0};
    const absl::Status status = engine.step({&item, 1}, logits);
    CHECK(status.ok(), message_of(status));
    done += rows;
    if (!is_last) continue;
    const auto token = sampling::sample(logits, params, {}, tokens.size(), scratch);
    CHECK(token.ok());
    tokens.push_back(token->token);
  }
  engine.release(*sequence);
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt.tokens.size()), tokens.end()};
}

}  // namespace millrace::dataplane::worker
