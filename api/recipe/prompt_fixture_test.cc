#include <gtest/gtest.h>

#include <map>

#include "api/recipe/chat_request.h"
#include "api/recipe/test_fixtures.h"

namespace millrace::api::recipe {
namespace {

/// How the release encoders behave where deepseek-recipe and the hosted API differ.
RenderOptions release_options(PromptFormat format) {
  return {.format = format,
          .old_reasoning = OldReasoning::kDropWithoutTools,
          .schema_keys = SchemaKeys::kAsGiven,
          .v4_system = V4System::kInPlace,
          .after_assistant = AfterAssistant::kNothing};
}

// The conversations and prompts that the V4 release brings along, byte for byte.
TEST(PromptFixture, TheReleasesOwnTestsOfV4) {
  RenderOptions options = release_options(PromptFormat::kV4);
  options.v4_efforts = V4Efforts::kApril2026;
  for (const int number : {1, 2, 3, 4}) {
    SCOPED_TRACE(number);
    const std::string suffix = std::to_string(number);
    const Json given =
        *parse_json(test::read_fixture("v4-official/test_input_" + suffix + ".json"));
    Json body = Json::object();
    if (given.is_array()) {
      body["messages"] = given;
    } else {
      body = given;
    }
    // The release's script runs the last one outside thinking mode.
    body["thinking_mode"] = number == 4 ? "chat" : "thinking";
    const auto prompt = render(test::release_conversation(body), options);
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_EQ(test::prompt_text(prompt->segments),
              test::read_fixture("v4-official/test_output_" + suffix + ".txt"));
  }
}

TEST(PromptFixture, ReferenceEncoders) {
  int count = 0;
  for (const Json& line : test::read_fixture_lines("prompt_cases.jsonl")) {
    if (line["protocol"] != "messages-list") continue;
    SCOPED_TRACE(line["name"].get<std::string>());
    const auto prompt =
        render(test::release_conversation(line["body"]),
               release_options(line["encoding"] == "v4" ? PromptFormat::kV4 : PromptFormat::kV41));
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_EQ(test::prompt_text(prompt->segments), line["expected"]["prompt"].get<std::string>());
    ++count;
  }
  EXPECT_EQ(count, 10);
}

PromptFormat format_of(const Json& line) {
  return line["encoding"] == "v4" ? PromptFormat::kV4 : PromptFormat::kV41;
}

absl::StatusOr<ChatRequest> parse_case(const Json& line) {
  const Json& body = line["body"];
  return parse_chat_request(body.dump(), body["model"].get<std::string>(), 2048, Thinking::kOn);
}

// Recorded from deepseek-recipe; the prompts do not depend on what becomes of old reasoning.
TEST(PromptFixture, ChatCompletions) {
  int prompts = 0;
  int errors = 0;
  for (const Json& line : test::read_fixture_lines("prompt_cases.jsonl")) {
    if (line["protocol"] != "chat_completions") continue;
    SCOPED_TRACE(line["name"].get<std::string>());
    const auto request = parse_case(line);
    if (line["name"] == "chat_n_two") {
      // deepseek-recipe refuses several choices; here they are served.
      ASSERT_TRUE(request.ok()) << request.status();
      EXPECT_EQ(request->sampling.choices, 2u);
      continue;
    }
    if (line["expected"].contains("error")) {
      ASSERT_FALSE(request.ok());
      EXPECT_EQ(std::string(request.status().message()),
                line["expected"]["error"].get<std::string>());
      ++errors;
      continue;
    }
    ASSERT_TRUE(request.ok()) << request.status();
    for (const OldReasoning old : {OldReasoning::kKeep, OldReasoning::kDropWithoutTools}) {
      const auto prompt =
          render(request->conversation, {.format = format_of(line), .old_reasoning = old});
      ASSERT_TRUE(prompt.ok()) << prompt.status();
      EXPECT_EQ(test::prompt_text(prompt->segments), line["expected"]["prompt"].get<std::string>());
    }
    ++prompts;
  }
  EXPECT_EQ(prompts, 15);
  EXPECT_EQ(errors, 9);
}

// Ids of control tokens in the published V4 and V4.1 tokenizers.
const std::map<std::string, int> kPublishedIds = {
    {"<｜begin▁of▁sentence｜>", 0}, {"<｜end▁of▁sentence｜>", 1}, {"<｜System｜>", 128799},
    {"<｜User｜>", 128803},         {"<｜Assistant｜>", 128804},  {"<think>", 128821},
    {"</think>", 128822},           {"｜DSML｜", 128825}};

// The recorded token ids show which tokens of a prompt are control tokens.
TEST(PromptFixture, ControlTokensStandWhereRecordedIdsHaveThem) {
  const Json cases = *parse_json(test::read_fixture("token_cases.json"));
  std::map<std::string, Json> requests;
  for (const Json& line : test::read_fixture_lines("prompt_cases.jsonl")) {
    requests[line["name"].get<std::string>()] = line;
  }
  for (const Json& recorded : cases["prompts"]) {
    SCOPED_TRACE(recorded["name"].get<std::string>());
    const Json& line = requests.at(recorded["name"].get<std::string>());
    const auto request = parse_case(line);
    ASSERT_TRUE(request.ok()) << request.status();
    const auto prompt = render(request->conversation, {.format = format_of(line)});
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    std::vector<int> expected;
    for (const Json& id : recorded["ids"]) {
      if (id < 3 || id >= 128000) expected.push_back(id.get<int>());
    }
    std::vector<int> actual;
    for (const Segment& segment : prompt->segments) {
      if (segment.is_control) actual.push_back(kPublishedIds.at(segment.text));
    }
    EXPECT_EQ(actual, expected);
  }
}

}  // namespace
}  // namespace millrace::api::recipe
