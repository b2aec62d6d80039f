#include "dataplane/sampling/params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace millrace::dataplane::sampling {
namespace {

using ::testing::HasSubstr;

TEST(SamplingParams, DefaultsAndExtremesAreValid) {
  EXPECT_TRUE(validate({}, 10).ok());
  SamplingParams params;
  params.temperature = 2;
  params.top_p = 1e-9;
  params.min_p = 1;
  params.presence_penalty = -2;
  params.frequency_penalty = 2;
  params.logit_bias = {{0, -100.0f}, {9, 100.0f}};
  params.stop_token_ids = {9, 0};
  EXPECT_TRUE(validate(params, 10).ok());
}

TEST(SamplingParams, EveryImpossibleValueIsRefusedByName) {
  struct Case {
    std::string field;
    std::function<void(SamplingParams&)> spoil;
  };
  const std::vector<Case> cases = {
      {"temperature", [](auto& p) { p.temperature = -0.1; }},
      {"temperature", [](auto& p) { p.temperature = 2.1; }},
      {"temperature", [](auto& p) { p.temperature = std::numeric_limits<double>::quiet_NaN(); }},
      {"top_p", [](auto& p) { p.top_p = 0; }},
      {"top_p", [](auto& p) { p.top_p = 1.01; }},
      {"top_k", [](auto& p) { p.top_k = -1; }},
      {"min_p", [](auto& p) { p.min_p = 1.5; }},
      {"presence_penalty", [](auto& p) { p.presence_penalty = 3; }},
      {"frequency_penalty", [](auto& p) { p.frequency_penalty = -3; }},
      {"repetition_penalty", [](auto& p) { p.repetition_penalty = 0; }},
      {"max_new_tokens", [](auto& p) { p.max_new_tokens = 0; }},
      {"top_logprobs", [](auto& p) { p.top_logprobs = kMaxTopLogprobs + 1; }},
      {"logit_bias",
       [](auto& p) {
         p.logit_bias = {{10, 1.0f}};
       }},
      {"logit_bias",
       [](auto& p) {
         p.logit_bias = {{1, 101.0f}};
       }},
      {"logit_bias",
       [](auto& p) {
         p.logit_bias = {{2, 1.0f}, {1, 1.0f}};
       }},
      {"logit_bias", [](auto& p) { p.logit_bias.resize(kMaxLogitBiases + 1); }},
      {"stop_token_ids", [](auto& p) { p.stop_token_ids = {-1}; }},
      {"stop_token_ids", [](auto& p) { p.stop_token_ids.resize(kMaxStopTokens + 1); }},
  };
  for (const Case& c : cases) {
    SamplingParams params;
    c.spoil(params);
    const absl::Status status = validate(params, 10);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.field));
  }
}

}  // namespace
}  // namespace millrace::dataplane::sampling
