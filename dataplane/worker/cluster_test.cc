// The texts of prefill and decode workers on the real engine, against the engine driven directly.

#include <random>

#include "common/check.h"
#include "common/str_cat.h"
#include "dataplane/engine/engine.h"
#include "dataplane/model/checkpoint.h"
#include "dataplane/sampling/sampler.h"
#include "dataplane/worker/test_cluster.h"

namespace millrace::dataplane::worker {
namespace {

constexpr engine::EngineLimits kLimits{.kv_blocks = 64, .max_sequences = 8, .max_step_rows = 96};

/// A random model of the real architecture with the real window, written by the reference.
const model::Checkpoint& checkpoint() {
  static const std::unique_ptr<model::Checkpoint> opened = [] {
    auto result = model::Checkpoint::open(MILLRACE_BINARY_DIR "/oracle/windowed");
    CHECK(result.ok(), message_of(result.status()));
    return *std::move(result);
  }();
  return *opened;
}

std::unique_ptr<engine::Engine> make_engine() {
  auto engine = engine::open_cpu_engine(checkpoint(), {}, kLimits);
  CHECK(engine.ok(), message_of(engine.status()));
  return *std::move(engine);
}

struct Prompt {
  std::vector<TokenId> tokens;
  int max_new_tokens = 0;
  double temperature = 0;
};

std::vector<Prompt> make_prompts(int count) {
  std::mt19937 random(50);
  std::vector<Prompt> prompts;
  for (int i = 0; i < count; ++i) {
    Prompt& prompt = prompts.emplace_back();
    // Lengths around the window and block borders, and between.
    static constexpr std::size_t kLengths[] = {1, 2, 7, 127, 128, 129, 200, 255, 256, 257};
    prompt.tokens.resize(kLengths[static_cast<std::size_t>(i) % std::size(kLengths)]);
    for (TokenId& token : prompt.tokens) {
      token = static_cast<TokenId>(
          5 + random() % static_cast<unsigned>(checkpoint().config().vocab_size - 5));
    }
    prompt.max_new_tokens = static_cast<int>(8 + random() % 9);
    prompt.temperature = i % 2 == 0 ? 0.0 : 0.8;
  }
  return prompts;
}

/// One process, one request at a time, the whole prompt in as few steps as its limit allows.
std::vector<TokenId> single_process_text(engine::Engine& engine, const Prompt& prompt) {
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

class ClusterEqualsSingle : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Hosts, ClusterEqualsSingle, ::testing::Values("host-a", "host-b"));

TEST_P(ClusterEqualsSingle, AllTextsOfManyRequestsAtOnceAndAfterAReroute) {
  const std::vector<Prompt> prompts = make_prompts(20);
  std::vector<std::vector<TokenId>> expected;
  const auto single = make_engine();
  for (const Prompt& prompt : prompts) expected.push_back(single_process_text(*single, prompt));

  const scheduler::SchedulerLimits limits{.max_step_rows = kLimits.max_step_rows,
                                          .max_sequences = kLimits.max_sequences,
                                          .kv_blocks = kLimits.kv_blocks};
  TestWorker prefill({.role = Role::kPrefill, .limits = limits, .eos_tokens = {1}}, make_engine());
  TestWorker decode(
      {.role = Role::kDecode, .host_id = GetParam(), .limits = limits, .eos_tokens = {1}},
      make_engine());
  Stream to_prefill(prefill.server->address());
  Stream to_decode(decode.server->address());
  std::vector<std::thread> clients;
  for (std::size_t client = 0; client < 5; ++client) {
    clients.emplace_back([&, client] {
      for (std::size_t i = client; i < prompts.size(); i += 5) {
        const Prompt& prompt = prompts[i];
        auto command = start_prefill(str_cat("r", i), prompt.tokens, prompt.max_new_tokens,
                                     prompt.temperature);
        EXPECT_EQ(generate(to_prefill, to_decode, command), expected[i]) << "prompt " << i;
        // The same request again, as if its worker had died after some tokens: they are
        // teacher-forced, and the rest must be what the dead worker would have written.
        const std::size_t delivered = 1 + i % (expected[i].size() - 1);
        auto& start = *command.mutable_start_prefill();
        start.mutable_key()->set_request_id(str_cat("again", i));
        start.mutable_tokens()->Add(expected[i].begin(),
                                    expected[i].begin() + static_cast<std::ptrdiff_t>(delivered));
        const std::vector<TokenId> rest(
            expected[i].begin() + static_cast<std::ptrdiff_t>(delivered), expected[i].end());
        EXPECT_EQ(generate(to_prefill, to_decode, command), rest)
            << "prompt " << i << " after " << delivered;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(within(1s, [&] { return prefill.gauges_are_zero() && decode.gauges_are_zero(); }));
}

}  // namespace
}  // namespace millrace::dataplane::worker
