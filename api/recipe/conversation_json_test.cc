#include "api/recipe/conversation_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/recipe/request_error.h"
#include "api/recipe/test_fixtures.h"
#include "common/json.h"

namespace millrace::api::recipe {
namespace {

TEST(ConversationJson, HoldsAllThatRenderingNeeds) {
  for (const Json& line : test::read_fixture_lines("prompt_cases.jsonl")) {
    if (line["protocol"] != "messages-list") continue;
    SCOPED_TRACE(line["name"].get<std::string>());
    const Conversation conversation = test::release_conversation(line["body"]);
    const std::string json = conversation_json(conversation);
    const auto again = read_conversation(json);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(conversation_json(*again), json);
    for (const SchemaKeys keys : {SchemaKeys::kAsGiven, SchemaKeys::kNameDescriptionParameters}) {
      const RenderOptions options{.schema_keys = keys};
      EXPECT_EQ(render(*again, options)->segments, render(conversation, options)->segments);
    }
  }
}

constexpr const char* kEverything =
    R"({"messages": [{"role": "system", "content": ""}, {"role": "developer", "content": "d", )"
    R"("tools": [{"name": "g", "description": "", "parameters": {}, "strict": false, "function": {"name": "g"}}]}, )"
    R"({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "image": "i"}], "task": "title"}, )"
    R"({"role": "assistant", "content": "x", "reasoning_content": "", "tool_calls": [{"id": "1", "name": "n::f", "arguments": "{\"a\": 1}"}]}, )"
    R"({"role": "tool", "content": "r", "tool_call_id": "1"}, {"role": "latest_reminder", "content": "l"}, )"
    R"({"role": "assistant", "content": "y", "prefix": true}], )"
    R"("tools": [{"name": "f", "namespace": "n", "namespace_description": "N", "description": "F", )"
    R"("parameters": {"type": "object", "properties": {"a": {"maximum": 123456789012345678901234567890, "minimum": 1e400}}}, "strict": true}], )"
    R"("tool_choice": {"name": "n::f"}, "response_format": "json_object", "thinking": false, "reasoning_effort": 33})";

TEST(ConversationJson, KeepsEveryMember) {
  const auto conversation = read_conversation(kEverything);
  ASSERT_TRUE(conversation.ok()) << conversation.status();
  EXPECT_EQ(conversation_json(*conversation), kEverything);
  EXPECT_EQ(conversation->tools[0].properties, std::vector<std::string>{"a"});
  EXPECT_EQ(conversation->messages[2].parts[1].kind, Part::Kind::kImage);
}

TEST(ConversationJson, OnlyMessagesAreRequired) {
  const auto conversation = read_conversation(R"({"messages": [{"role": "user"}]})");
  ASSERT_TRUE(conversation.ok()) << conversation.status();
  EXPECT_EQ(conversation->thinking, Thinking::kOn);
  EXPECT_TRUE(conversation->messages[0].parts.empty());
}

TEST(ConversationJson, ErrorsNameTheField) {
  const std::pair<const char*, const char*> refusals[] = {
      {R"({})", "messages"},
      {R"({"messages": 1})", "messages"},
      {R"({"messages": [1]})", "messages[0]"},
      {R"({"messages": [{"role": "king"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "user", "content": 1}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": [{"type": "sound"}]}]})",
       "messages[0].content[0].type"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})",
       "messages[0].content[0].image"},
      {R"({"messages": [{"role": "user", "task": "sleep"}]})", "messages[0].task"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"name": "f"}]}]})",
       "messages[0].tool_calls[0].arguments"},
      {R"({"messages": [], "tools": [{"name": ""}]})", "tools[0].name"},
      {R"({"messages": [], "tool_choice": {"name": "f"}})", "tool_choice"},
      {R"({"messages": [], "tool_choice": "f"})", "tool_choice"},
      {R"({"messages": [], "response_format": "xml"})", "response_format"},
      {R"({"messages": [], "reasoning_effort": 101})", "reasoning_effort"},
      {R"({"messages": [], "reasoning_effort": "most"})", "reasoning_effort"},
  };
  for (const auto& [json, field] : refusals) {
    SCOPED_TRACE(json);
    const auto conversation = read_conversation(json);
    ASSERT_FALSE(conversation.ok());
    EXPECT_EQ(error_details(conversation.status()).param, field);
  }
}

TEST(SamplingJson, ListsWhatCounts) {
  Sampling sampling;
  sampling.logit_bias[7] = -1;
  sampling.stop = {"x"};
  const Json json = *parse_json(sampling_json(sampling));
  EXPECT_EQ(json["temperature"], 1.0);
  EXPECT_EQ(json["logit_bias"]["7"], -1.0);
  EXPECT_EQ(json["stop"], Json::array({"x"}));
  EXPECT_TRUE(json["seed"].is_null());
}

}  // namespace
}  // namespace millrace::api::recipe
