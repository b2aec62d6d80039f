// The texts of prefill and decode workers on the real engine, against the engine driven directly.

#include <gtest/gtest.h>

#include "dataplane/worker/test_cluster.h"
#include "dataplane/worker/test_single.h"

namespace millrace::dataplane::worker {
namespace {

/// Written by the reference when the tests run; its window is the real one.
const RandomModel& random_model() {
  static const RandomModel model(MILLRACE_BINARY_DIR "/golden/windowed");
  return model;
}

class ClusterEqualsSingle : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Hosts, ClusterEqualsSingle, ::testing::Values("host-a", "host-b"));

TEST_P(ClusterEqualsSingle, AllTextsOfManyRequestsAtOnceAndAfterAReroute) {
  const std::vector<Prompt> prompts = make_prompts(random_model().vocab_size(), 50, 8);
  std::vector<std::vector<TokenId>> expected;
  const auto single = random_model().open_engine();
  for (const Prompt& prompt : prompts) expected.push_back(single_process_text(*single, prompt));

  const scheduler::SchedulerLimits limits{.max_step_rows = kLimits.max_step_rows,
                                          .max_sequences = kLimits.max_sequences,
                                          .kv_blocks = kLimits.kv_blocks};
  TestWorker prefill({.role = Role::kPrefill, .limits = limits, .eos_tokens = {1}},
                     random_model().open_engine());
  TestWorker decode(
      {.role = Role::kDecode, .host_id = GetParam(), .limits = limits, .eos_tokens = {1}},
      random_model().open_engine());
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
  EXPECT_TRUE(within(kSoon, [&] { return prefill.gauges_are_zero() && decode.gauges_are_zero(); }));
}

}  // namespace
}  // namespace millrace::dataplane::worker
