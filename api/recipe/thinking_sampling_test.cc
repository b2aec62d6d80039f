#include "api/recipe/thinking_sampling.h"

#include <gtest/gtest.h>

namespace millrace::api::recipe {
namespace {

Sampling settled(ThinkingSampling rule, PromptFormat format, Thinking thinking, double top_p,
                 std::size_t tools = 0) {
  Conversation conversation;
  conversation.thinking = thinking;
  conversation.tools.resize(tools);
  Sampling sampling;
  sampling.temperature = 0.2;
  sampling.top_p = top_p;
  sampling.presence_penalty = 1;
  sampling.frequency_penalty = 1;
  sampling.repetition_penalty = 2;
  settle_thinking_sampling(rule, format, conversation, sampling);
  return sampling;
}

TEST(ThinkingSampling, StaysAsRequestedByDefaultAndOutsideThinkingMode) {
  for (const auto& [rule, thinking] : {std::pair(ThinkingSampling::kAsRequested, Thinking::kOn),
                                       std::pair(ThinkingSampling::kFixed, Thinking::kOff)}) {
    const Sampling sampling = settled(rule, PromptFormat::kV41, thinking, 0.5);
    EXPECT_EQ(sampling.temperature, 0.2);
    EXPECT_EQ(sampling.top_p, 0.5);
    EXPECT_EQ(sampling.presence_penalty, 1);
  }
}

TEST(ThinkingSampling, IsFixedAsTheHostedApiDoesWhenAskedTo) {
  const auto fixed = [](PromptFormat format, double top_p, std::size_t tools) {
    return settled(ThinkingSampling::kFixed, format, Thinking::kOn, top_p, tools);
  };
  const Sampling sampling = fixed(PromptFormat::kV41, 0.5, 0);
  EXPECT_EQ(sampling.temperature, 1);
  EXPECT_EQ(sampling.presence_penalty, 0);
  EXPECT_EQ(sampling.frequency_penalty, 0);
  EXPECT_EQ(sampling.repetition_penalty, 1);
  EXPECT_EQ(sampling.top_p, 0.95);
  EXPECT_EQ(fixed(PromptFormat::kV41, 0.99, 1).top_p, 0.99);
  EXPECT_EQ(fixed(PromptFormat::kV4, 0.5, 1).top_p, 0.95);
  EXPECT_EQ(fixed(PromptFormat::kV4, 0.5, 0).top_p, 1);
}

}  // namespace
}  // namespace millrace::api::recipe
