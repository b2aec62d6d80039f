#include "dataplane/fit/measure.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::dataplane::fit {
namespace {

using engine::SequenceId;
using engine::StepItem;

constexpr int kShortestPrompt = 16;
constexpr int kHeldOutEvery = 4;
/// Enough for a fit of three quarters of them.
constexpr std::size_t kLeastSteps = std::size_t{4} * cost::kMinFitSamples;

/// Runs steps of made-up tokens and times them.
class Bench {
 public:
  Bench(engine::Engine& engine, const MeasurePlan& plan, const MeasureShell& shell)
      : engine_(engine), plan_(plan), shell_(shell), random_(plan.seed) {}

  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  ~Bench() {
    for (const Prompt& prompt : prompts_) engine_.release(prompt.sequence);
  }

  /// A prompt on its way through the engine.
  struct Prompt {
    SequenceId sequence = -1;
    int length = 0;
    int done = 0;
  };

  absl::StatusOr<Prompt> begin(int length, int capacity) {
    ASSIGN_OR_RETURN(const SequenceId id,
                     engine_.create({.prompt_tokens = length, .capacity_tokens = capacity}));
    prompts_.push_back({id, length, 0});
    return prompts_.back();
  }

  void end(const Prompt& prompt) {
    engine_.release(prompt.sequence);
    std::erase_if(prompts_, [&](const Prompt& p) { return p.sequence == prompt.sequence; });
  }

  /// So many further rows of each; how long it took, in ns.
  absl::StatusOr<double> step(const std::vector<std::pair<Prompt*, int>>& chunks) {
    std::vector<std::vector<TokenId>> tokens;
    std::vector<StepItem> items;
    tokens.reserve(chunks.size());
    items.reserve(chunks.size());
    for (const auto& [prompt, rows] : chunks) {
      tokens.emplace_back(static_cast<std::size_t>(rows));
      for (TokenId& token : tokens.back()) {
        token = static_cast<TokenId>(below(static_cast<std::uint64_t>(engine_.vocab_size())));
      }
      const bool is_last = prompt->done + rows >= prompt->length;
      items.push_back({prompt->sequence, tokens.back(), is_last ? 1 : 0});
    }
    const double start = shell_.now_ns();
    RETURN_IF_ERROR(engine_.step(items, logits_));
    const double ns = shell_.now_ns() - start;
    for (const auto& [prompt, rows] : chunks) prompt->done += rows;
    return ns;
  }

  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  int log_uniform(int least, int most) {
    const double exponent =
        std::uniform_real_distribution(std::log(least), std::log(most + 1))(random_);
    return std::clamp(static_cast<int>(std::exp(exponent)), least, most);
  }

  const MeasurePlan& plan() const { return plan_; }

 private:
  engine::Engine& engine_;
  const MeasurePlan& plan_;
  const MeasureShell& shell_;
  std::mt19937_64 random_;
  std::vector<Prompt> prompts_;
  std::vector<float> logits_;
};

/// The rows of a prompt's next chunk: mostly a full one, sometimes what a crowded step leaves.
int chunk_rows(Bench& bench, const Bench::Prompt& prompt, int room) {
  const int most = std::min(room, prompt.length - prompt.done);
  return bench.below(3) == 0 ? bench.log_uniform(1, most) : most;
}

void record(const std::vector<std::pair<Bench::Prompt*, int>>& chunks, double ns, Measured& out) {
  MeasuredPrefill measured;
  for (const auto& [prompt, rows] : chunks) {
    const int cached = prompt->done - rows;
    measured.sample.add(cost::chunk_at(rows, cached, prompt->length));
    if (rows > measured.rows) {
      measured.rows = rows;
      measured.cached = cached;
    }
  }
  measured.sample.ns = ns;
  out.prefill.push_back(measured);
}

/// One prompt from its first row to its last; in every fourth one, a second prompt shares its
/// steps.
absl::Status run_prompt(Bench& bench, Measured& out) {
  const MeasurePlan& plan = bench.plan();
  const auto length = [&] { return bench.log_uniform(kShortestPrompt, plan.max_context); };
  const int first_length = length();
  ASSIGN_OR_RETURN(Bench::Prompt first, bench.begin(first_length, first_length + 1));
  Bench::Prompt second;
  const bool is_shared = bench.below(4) == 0;
  if (is_shared) {
    const int second_length = length();
    ASSIGN_OR_RETURN(second, bench.begin(second_length, second_length + 1));
  }
  while (first.done < first.length) {
    const bool has_second = is_shared && second.done < second.length;
    std::vector<std::pair<Bench::Prompt*, int>> chunks;
    const int room = has_second ? plan.max_step_rows / 2 : plan.max_step_rows;
    chunks.emplace_back(&first, chunk_rows(bench, first, room));
    if (has_second) chunks.emplace_back(&second, chunk_rows(bench, second, room));
    ASSIGN_OR_RETURN(const double ns, bench.step(chunks));
    record(chunks, ns, out);
  }
  bench.end(first);
  if (is_shared) bench.end(second);
  return absl::OkStatus();
}

/// Sequences with contexts of many lengths, brought there in full chunks that are not measured.
absl::StatusOr<std::vector<Bench::Prompt>> decode_sequences(Bench& bench, int room) {
  const MeasurePlan& plan = bench.plan();
  std::vector<Bench::Prompt> sequences;
  for (int i = 0; i < plan.max_batch; ++i) {
    const int context = bench.log_uniform(kShortestPrompt, plan.max_context - room);
    ASSIGN_OR_RETURN(Bench::Prompt sequence, bench.begin(context, context + room));
    while (sequence.done < sequence.length) {
      const int rows = std::min(plan.max_step_rows, sequence.length - sequence.done);
      RETURN_IF_ERROR(bench.step({{&sequence, rows}}).status());
    }
    sequences.push_back(sequence);
  }
  return sequences;
}

/// Decode steps of random subsets until the time is over or a sequence has no room left.
absl::Status run_decode(Bench& bench, const std::function<bool()>& is_over, Measured& out) {
  const int room = std::min(bench.plan().max_context / 4, 1024);
  ASSIGN_OR_RETURN(std::vector<Bench::Prompt> sequences, decode_sequences(bench, room));
  while (!is_over()) {
    const auto batch =
        static_cast<std::size_t>(bench.log_uniform(1, static_cast<int>(sequences.size())));
    std::vector<std::pair<Bench::Prompt*, int>> chunks;
    cost::DecodeSample sample{.batch = static_cast<double>(batch)};
    const std::size_t start = bench.below(sequences.size());
    for (std::size_t i = 0; i < batch; ++i) {
      Bench::Prompt& sequence = sequences[(start + i) % sequences.size()];
      if (sequence.done + 1 >= sequence.length + room) return absl::OkStatus();
      sample.kv_tokens += sequence.done;
      chunks.emplace_back(&sequence, 1);
    }
    ASSIGN_OR_RETURN(sample.ns, bench.step(chunks));
    out.decode.push_back(sample);
  }
  return absl::OkStatus();
}

template <typename Sample>
void split(std::span<const Sample> all, std::vector<Sample>& fitted,
           std::vector<Sample>& held_out) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    (i % kHeldOutEvery == kHeldOutEvery - 1 ? held_out : fitted).push_back(all[i]);
  }
}

}  // namespace

absl::Status check(const MeasurePlan& plan) {
  if (!(plan.seconds > 0) || plan.seconds > 86'400) {
    return absl::InvalidArgumentError(
        str_cat("seconds = ", plan.seconds, "; it must be above 0 and at most 86400"));
  }
  if (plan.max_context < 4 * kShortestPrompt) {
    return absl::InvalidArgumentError(
        str_cat("max_context = ", plan.max_context, "; it must be at least ", 4 * kShortestPrompt));
  }
  if (plan.max_step_rows < 2 || plan.max_batch < 1 || plan.max_batch > plan.max_step_rows) {
    return absl::InvalidArgumentError(str_cat("max_batch = ", plan.max_batch,
                                              "; it must be from 1 to the rows of a step, ",
                                              plan.max_step_rows, ", of which there must be 2"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Measured> measure_costs(engine::Engine& engine, const MeasurePlan& plan,
                                       const MeasureShell& shell) {
  RETURN_IF_ERROR(check(plan));
  Bench bench(engine, plan, shell);
  Measured measured;
  RETURN_IF_ERROR(run_prompt(bench, measured));  // what runs first pays for cold memory
  measured = {};
  const double start = shell.now_ns();
  const auto share = [&] { return (shell.now_ns() - start) * 1e-9 / plan.seconds; };
  while (share() < 2.0 / 3 || measured.prefill.size() < kLeastSteps) {
    RETURN_IF_ERROR(run_prompt(bench, measured));
    shell.progress(std::min(share(), 1.0));
  }
  const auto is_over = [&] {
    shell.progress(std::min(share(), 1.0));
    return share() >= 1 && measured.decode.size() >= kLeastSteps;
  };
  RETURN_IF_ERROR(run_decode(bench, is_over, measured));
  shell.progress(1);
  return measured;
}

absl::StatusOr<JudgedFit<cost::PrefillFit>> judge_prefill(const Measured& measured) {
  std::vector<cost::PrefillSample> all;
  all.reserve(measured.prefill.size());
  for (const MeasuredPrefill& step : measured.prefill) all.push_back(step.sample);
  std::vector<cost::PrefillSample> fitted;
  std::vector<cost::PrefillSample> held_out;
  split<cost::PrefillSample>(all, fitted, held_out);
  ASSIGN_OR_RETURN(cost::PrefillFit fit, cost::fit_prefill(fitted));
  const double error = cost::mean_relative_error(fit.model, held_out);
  return JudgedFit<cost::PrefillFit>{std::move(fit), static_cast<int>(held_out.size()), error};
}

absl::StatusOr<JudgedFit<cost::DecodeFit>> judge_decode(const Measured& measured) {
  std::vector<cost::DecodeSample> fitted;
  std::vector<cost::DecodeSample> held_out;
  split<cost::DecodeSample>(measured.decode, fitted, held_out);
  ASSIGN_OR_RETURN(cost::DecodeFit fit, cost::fit_decode(fitted));
  const double error = cost::mean_relative_error(fit.model, held_out);
  return JudgedFit<cost::DecodeFit>{std::move(fit), static_cast<int>(held_out.size()), error};
}

}  // namespace millrace::dataplane::fit
