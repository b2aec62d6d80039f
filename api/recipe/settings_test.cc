#include "api/recipe/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "api/recipe/protocols.h"
#include "api/recipe/request_error.h"
#include "api/recipe/test_deployment.h"

namespace millrace::api::recipe {
namespace {

TEST(Settings, EveryValueOfEverySettingCanBeChosenByName) {
  std::set<std::string_view> names;
  for (const Setting& setting : all_settings()) {
    SCOPED_TRACE(setting.name);
    EXPECT_TRUE(names.insert(setting.name).second);
    for (const std::string_view value : setting.values) {
      Settings settings;
      ASSERT_TRUE(change_setting(setting.name, value, settings).ok());
      EXPECT_EQ(setting.value_of(settings), value);
      // The others stay as they are.
      for (const Setting& other : all_settings()) {
        if (other.name == setting.name) continue;
        EXPECT_EQ(other.value_of(settings), other.value_of({}));
      }
    }
  }
}

TEST(Settings, NamesStandForWhatTheySay) {
  Settings settings;
  ASSERT_TRUE(change_setting("encoding", "v4", settings).ok());
  EXPECT_EQ(settings.render.format, PromptFormat::kV4);
  ASSERT_TRUE(change_setting("old_reasoning", "keep", settings).ok());
  EXPECT_EQ(settings.render.old_reasoning, OldReasoning::kKeep);
  ASSERT_TRUE(change_setting("v4_efforts", "april-2026", settings).ok());
  EXPECT_EQ(settings.render.v4_efforts, V4Efforts::kApril2026);
  ASSERT_TRUE(change_setting("default_thinking", "off", settings).ok());
  EXPECT_EQ(settings.default_thinking, Thinking::kOff);
  ASSERT_TRUE(change_setting("usage_form", "finishing", settings).ok());
  EXPECT_EQ(settings.usage_form, UsageForm::kFinishingChunk);
  ASSERT_TRUE(change_setting("block_newlines", "all", settings).ok());
  EXPECT_EQ(settings.reading.block_newlines, BlockNewlines::kAll);
  EXPECT_EQ(settings.reading.think_newlines, ThinkNewlines::kKeep);
  ASSERT_TRUE(change_setting("unknown_tool", "reject", settings).ok());
  EXPECT_EQ(settings.reading.calls.unknown_tool, UnknownTool::kReject);
  ASSERT_TRUE(change_setting("json_text", "as-generated", settings).ok());
  EXPECT_EQ(settings.reading.json_text, JsonText::kAsGenerated);
  ASSERT_TRUE(change_setting("thinking_sampling", "fixed", settings).ok());
  EXPECT_EQ(settings.thinking_sampling, ThinkingSampling::kFixed);
}

TEST(Settings, RefusesUnknownNamesAndValues) {
  Settings settings;
  const absl::Status value = change_setting("encoding", "v3", settings);
  EXPECT_EQ(error_details(value).param, "encoding");
  EXPECT_EQ(error_details(value).message, "`encoding` must be v4 or v41, not \"v3\"");
  const absl::Status name = change_setting("encodings", "v4", settings);
  EXPECT_THAT(error_details(name).message, testing::HasSubstr("there are encoding, "));
}

TEST(Settings, ADeploymentNeedsTheControlTokensOfItsEncoding) {
  const test::NanoDeployment nano;
  Settings settings;
  settings.default_thinking = Thinking::kOff;
  settings.reading.think_newlines = ThinkNewlines::kDrop;
  const auto made = make_deployment(*nano.value.tokenizer, settings, "m");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->model_id, "m");
  EXPECT_EQ(made->control.think_end, nano.value.control.think_end);
  EXPECT_EQ(made->begin_of_sequence, nano.value.begin_of_sequence);
  EXPECT_EQ(made->vocab_size, nano.value.vocab_size);
  EXPECT_EQ(made->default_thinking, Thinking::kOff);
  EXPECT_EQ(made->reading.think_newlines, ThinkNewlines::kDrop);
}

TEST(Protocols, AreFoundByName) {
  for (const Protocol& protocol : all_protocols()) {
    const auto found = find_protocol(protocol.name);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ((*found)->path, protocol.path);
  }
  EXPECT_THAT(error_details(find_protocol("smtp").status()).message,
              testing::HasSubstr("there are chat, "));
}

}  // namespace
}  // namespace millrace::api::recipe
