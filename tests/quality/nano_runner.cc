#include "tests/quality/nano_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "common/check.h"

namespace millrace::tests::quality {
namespace {

namespace engine = dataplane::engine;

constexpr int kStepRows = 512;
constexpr char kModel[] = MILLRACE_SOURCE_DIR "/deploy/models/nano";

std::vector<float> step(engine::Engine& engine, engine::SequenceId id,
                        std::span<const TokenId> tokens, int logits_rows) {
  const engine::StepItem item{.sequence = id, .tokens = tokens, .logits_rows = logits_rows};
  std::vector<float> logits;
  const absl::Status status = engine.step({&item, 1}, logits);
  CHECK(status.ok());
  return logits;
}

}  // namespace

NanoRunner::NanoRunner(const engine::EngineSwitches& switches) {
  auto checkpoint = dataplane::model::Checkpoint::open(kModel);
  CHECK(checkpoint.ok());
  checkpoint_ = *std::move(checkpoint);
  auto opened = engine::open_cpu_engine(
      *checkpoint_, switches, {.kv_blocks = 64, .max_sequences = 2, .max_step_rows = kStepRows});
  CHECK(opened.ok());
  engine_ = *std::move(opened);
}

Answer NanoRunner::run(const std::vector<TokenId>& prompt, const std::vector<TokenId>& expect,
                       const Hit& hit) {
  const int start = std::max(0, hit.tokens - kBlockTokens);
  const std::span<const TokenId> all(prompt);
  const absl::StatusOr<engine::SequenceId> id =
      engine_->create({.prompt_tokens = static_cast<int>(prompt.size()),
                       .capacity_tokens = static_cast<int>(prompt.size() + expect.size()),
                       .compute_start = start,
                       .write_floor = hit.tokens,
                       .prefix_tokens = all.first(static_cast<std::size_t>(start))});
  CHECK(id.ok());
  for (std::size_t i = 0; i < hit.blocks.size(); ++i) {
    const std::span<std::byte> block = engine_->block(*id, static_cast<int>(i));
    CHECK(block.size() == hit.blocks[i].size());
    std::memcpy(block.data(), hit.blocks[i].data(), block.size());
  }

  Answer answer;
  for (auto rest = all.subspan(static_cast<std::size_t>(start)); !rest.empty();) {
    const std::size_t count = std::min<std::size_t>(rest.size(), kStepRows);
    answer.logits = step(*engine_, *id, rest.first(count), count == rest.size() ? 1 : 0);
    rest = rest.subspan(count);
  }
  for (int i = 0; i < static_cast<int>(prompt.size()) / kBlockTokens; ++i) {
    const std::span<const std::byte> block = engine_->block(*id, i);
    answer.blocks.emplace_back(block.begin(), block.end());
  }
  if (expect.size() > 1) {
    const std::vector<float> rest = step(*engine_, *id, std::span(expect).first(expect.size() - 1),
                                         static_cast<int>(expect.size()) - 1);
    answer.logits.insert(answer.logits.end(), rest.begin(), rest.end());
  }
  engine_->release(*id);
  return answer;
}

std::vector<deploy::cli::EvalTask> read_tasks(const std::vector<std::string>& kinds,
                                              std::size_t min_prompt) {
  auto tasks = deploy::cli::read_eval_tasks(std::string(kModel) + "/eval/tasks.jsonl");
  CHECK(tasks.ok());
  std::erase_if(*tasks, [&](const deploy::cli::EvalTask& task) {
    const bool is_wanted =
        kinds.empty() || std::find(kinds.begin(), kinds.end(), task.task) != kinds.end();
    return !is_wanted || task.prompt_ids.size() < min_prompt;
  });
  return *std::move(tasks);
}

bool is_exact(const Answer& answer, const std::vector<TokenId>& expect, int vocab_size) {
  for (std::size_t i = 0; i < expect.size(); ++i) {
    const auto row = answer.logits.begin() + static_cast<std::ptrdiff_t>(i) * vocab_size;
    if (std::max_element(row, row + vocab_size) - row != expect[i]) return false;
  }
  return true;
}

}  // namespace millrace::tests::quality
