#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "common/types.h"
#include "dataplane/engine/engine.h"
#include "dataplane/model/checkpoint.h"
#include "deploy/cli/eval_tasks.h"

namespace millrace::tests::quality {

/// The bytes of a sequence's blocks, in order.
using Blocks = std::vector<std::vector<std::byte>>;

/// A prefix hit as an engine takes it: `blocks` hold the global KV of positions [0, tokens).
struct Hit {
  int tokens = 0;
  Blocks blocks = {};
};

/// What the model said to a prompt when its answer is forced to be `expect`.
struct Answer {
  std::vector<float> logits = {};  ///< [expect.size(), vocabulary]: row i predicts expect[i]
  Blocks blocks = {};              ///< full blocks of the prompt
};

/// The shipped model on the CPU engine, one sequence at a time.
class NanoRunner {
 public:
  explicit NanoRunner(const dataplane::engine::EngineSwitches& switches);

  int vocab_size() const { return engine_->vocab_size(); }
  /// From nothing, or behind a hit: the last window of the hit is run again (bounded replay of the
  /// encoder), its blocks are not written.
  Answer run(const std::vector<TokenId>& prompt, const std::vector<TokenId>& expect,
             const Hit& hit = {});

 private:
  std::unique_ptr<dataplane::model::Checkpoint> checkpoint_;
  std::unique_ptr<dataplane::engine::Engine> engine_;
};

/// Held-out tasks of the shipped model: those of the named kinds, or all when none is named, whose
/// prompts have at least `min_prompt` tokens.
std::vector<deploy::cli::EvalTask> read_tasks(const std::vector<std::string>& kinds,
                                              std::size_t min_prompt);

/// Whether greedy decoding writes exactly `expect`.
bool is_exact(const Answer& answer, const std::vector<TokenId>& expect, int vocab_size);

/// Tokens of a block, and of the window that bounded replay runs again.
inline constexpr int kBlockTokens = 128;

/// The longest prefix of whole blocks that leaves a token of the prompt to run.
inline int longest_hit(std::size_t prompt_tokens) {
  return static_cast<int>((prompt_tokens - 1) / kBlockTokens) * kBlockTokens;
}

}  // namespace millrace::tests::quality
