#include <gtest/gtest.h>

#include "api/recipe/json_text.h"
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

}  // namespace
}  // namespace millrace::api::recipe
