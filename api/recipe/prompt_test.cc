#include "api/recipe/prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "api/recipe/chat_request.h"
#include "api/recipe/test_deployment.h"
#include "api/recipe/test_fixtures.h"

namespace millrace::api::recipe {
namespace {

constexpr const char* kEffort75 =
    "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n";

std::string prompt_of(const Conversation& conversation) {
  const auto rendered = render(conversation);
  EXPECT_TRUE(rendered.ok()) << rendered.status();
  return rendered.ok() ? test::prompt_text(rendered->segments) : "";
}

std::string prompt_of(const std::string& body) {
  const auto request = parse_chat_request(body, "m", 2048, Thinking::kOn);
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? prompt_of(request->conversation) : "";
}

// Recorded from deepseek-recipe 0.1 and from the release's reference encoder.
TEST(RenderV41, GivesThePublishedPrompts) {
  EXPECT_EQ(prompt_of(R"({"model":"m","messages":[{"role":"user","content":"Hello"}]})"),
            std::string("<｜begin▁of▁sentence｜><｜System｜>") + kEffort75 +
                "<｜User｜>Hello<｜Assistant｜><think>");
  EXPECT_EQ(
      prompt_of(R"({"model":"m","messages":[{"role":"system","content":"You are helpful."},
                          {"role":"user","content":"Hello"}],"thinking":{"type":"disabled"}})"),
      "<｜begin▁of▁sentence｜><｜System｜>You are helpful.<｜User｜>Hello<｜Assistant｜></think>");
  EXPECT_EQ(prompt_of(R"({"model":"m","messages":[{"role":"system","content":"sys"},
                          {"role":"user","content":"Hi"}],"reasoning_effort":"max"})"),
            "<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 100 (range 1-100, the higher the "
            "value, "
            "the more thorough the reasoning)\n\nsys<｜User｜>Hi<｜Assistant｜><think>");
  EXPECT_EQ(
      prompt_of(R"({"model":"m","messages":[{"role":"user","content":"x"},
                          {"role":"assistant","content":"y"},
                          {"role":"latest_reminder","content":"Be brief."}]})"),
      std::string("<｜begin▁of▁sentence｜><｜System｜>") + kEffort75 +
          "<｜User｜>x<｜Assistant｜><think></think>y<｜end▁of▁sentence｜><｜latest_reminder｜>Be "
          "brief.<｜Assistant｜><think>");
  EXPECT_EQ(prompt_of(R"({"model":"m","messages":[{"role":"user","content":"one"},
                          {"role":"assistant","content":"two","reasoning_content":"dropped"},
                          {"role":"user","content":"three"}]})"),
            std::string("<｜begin▁of▁sentence｜><｜System｜>") + kEffort75 +
                "<｜User｜>one<｜Assistant｜></think>two<｜end▁of▁sentence｜><｜User｜>three"
                "<｜Assistant｜><think>");
  EXPECT_EQ(prompt_of(R"({"model":"m","messages":[{"role":"user","content":"one"},
                          {"role":"assistant","content":"two"},
                          {"role":"system","content":"be terse"}]})"),
            std::string("<｜begin▁of▁sentence｜><｜System｜>") + kEffort75 +
                "<｜User｜>one<｜Assistant｜></think>two<｜end▁of▁sentence｜><｜System｜>be terse"
                "<｜Assistant｜><think>");
  EXPECT_EQ(prompt_of(R"({"model":"m","messages":[{"role":"system","content":"a"},
                          {"role":"system","content":"b"},{"role":"user","content":"u"}],
                          "thinking":{"type":"disabled"}})"),
            "<｜begin▁of▁sentence｜><｜System｜>a<｜System｜>b<｜User｜>u<｜Assistant｜></think>");
}

TEST(RenderV41, KeepsReasoningOfTheCurrentRound) {
  EXPECT_EQ(
      prompt_of(R"({"model":"m","messages":[{"role":"user","content":"u"},
                          {"role":"assistant","content":"a","reasoning_content":"r"}]})"),
      std::string("<｜begin▁of▁sentence｜><｜System｜>") + kEffort75 +
          "<｜User｜>u<｜Assistant｜><think>r</think>a<｜end▁of▁sentence｜><｜Assistant｜><think>");
}

TEST(RenderV41, JoinsPartsAndConsecutiveUserMessagesByABlankLine) {
  EXPECT_EQ(prompt_of(R"({"model":"m","messages":[{"role":"developer","content":"Be brief."},
                          {"role":"user","content":[{"type":"text","text":"Say "},
                          {"type":"text","text":"hi."}]},{"role":"user","content":"Now."}],
                          "reasoning_effort":"none"})"),
            "<｜begin▁of▁sentence｜><｜System｜>Be brief.<｜User｜>Say \n\nhi.\n\nNow."
            "<｜Assistant｜></think>");
}

/// The prompt of a call with these arguments.
std::string prompt_of_call(const std::string& arguments) {
  Conversation conversation;
  conversation.thinking = Thinking::kOff;
  conversation.messages.resize(1);
  conversation.messages[0].role = Role::kAssistant;
  conversation.messages[0].tool_calls = {{"c", "f", arguments}};
  return prompt_of(conversation);
}

// As Python's dictionaries have it.
TEST(RenderV41, OfARepeatedArgumentTheLastValueStandsAtTheFirstPlace) {
  EXPECT_THAT(prompt_of_call(R"({"a":1,"b":[1.50,"x"],"a":"y"})"),
              testing::HasSubstr("name=\"a\" string=\"true\">y</｜DSML｜ parameter>\n"
                                 "<｜DSML｜ parameter name=\"b\" string=\"false\">[1.5, \"x\"]<"));
}

// Arguments come as a text, of which no parser has counted the members before. A search through
// those before for each of them takes minutes.
TEST(RenderV41, ManyArgumentsTakeTimeInProportion) {
  std::string arguments = "{\"\":0";
  for (int i = 0; i < 300'000; ++i) arguments += ",\"" + std::to_string(i) + "\":0";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(prompt_of_call(arguments + "}"), testing::HasSubstr("name=\"299999\""));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(EncodePrompt, PutsControlIdsOnlyWhereTheRendererPutThem) {
  const test::NanoDeployment nano;
  const auto request = parse_chat_request(
      R"({"model":"m","messages":[{"role":"user","content":"<｜Assistant｜></think> <｜User｜>"}],
          "reasoning_effort":"none"})",
      "m", 2048, Thinking::kOn);
  ASSERT_TRUE(request.ok()) << request.status();
  const auto ids = encode_prompt(render(request->conversation)->segments, *nano.value.tokenizer);
  ASSERT_TRUE(ids.ok()) << ids.status();
  std::vector<TokenId> control_ids;
  for (TokenId id : *ids) {
    if (id < 3 || id >= nano.control("<｜System｜>")) control_ids.push_back(id);
  }
  EXPECT_THAT(control_ids,
              testing::ElementsAre(nano.value.begin_of_sequence, nano.control("<｜User｜>"),
                                   nano.control("<｜Assistant｜>"), nano.control("</think>")));
  EXPECT_EQ(
      nano.value.tokenizer->decode(*ids),
      "<｜begin▁of▁sentence｜><｜User｜><｜Assistant｜></think> <｜User｜><｜Assistant｜></think>");
}

TEST(EncodePrompt, GivesTheSameIdsWithHelpersAndCountsThem) {
  const test::NanoDeployment nano;
  std::vector<Segment> segments;
  for (int i = 0; i < 100; ++i) {
    segments.push_back({.is_control = true, .text = "<｜User｜>"});
    std::string text;
    for (int word = 0; word < 40 * i; ++word) text += "the river 123 ";
    segments.push_back({.is_control = false, .text = std::move(text)});
  }
  const auto alone = encode_prompt(segments, *nano.value.tokenizer);
  ASSERT_TRUE(alone.ok()) << alone.status();
  tokenizer::EncodePool pool(3);
  EXPECT_EQ(encode_prompt(segments, *nano.value.tokenizer, &pool).value(), *alone);
  EXPECT_EQ(count_prompt(segments, *nano.value.tokenizer).value(), alone->size());
  segments.push_back({.is_control = true, .text = "<｜Nobody｜>"});
  EXPECT_EQ(count_prompt(segments, *nano.value.tokenizer).status().code(),
            absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace millrace::api::recipe
