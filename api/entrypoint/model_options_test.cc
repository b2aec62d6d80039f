#include "api/entrypoint/model_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace millrace::api::entrypoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<ModelOptions> read(const std::string& text) {
  const std::string folder = testing::TempDir();
  std::ofstream(folder + "/serving.json") << text;
  return read_model_options(folder);
}

TEST(ModelOptions, EverythingIsAsByDefaultWithoutAFile) {
  const auto options = read_model_options(testing::TempDir() + "/no-such-folder");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->aliases.empty());
  EXPECT_EQ(options->settings.reading.calls.unknown_tool, recipe::UnknownTool::kPassOn);
}

TEST(ModelOptions, ReadsAliasesAndSettings) {
  const auto options =
      read(R"({"aliases":["a","b"],"unknown_tool":"reject","default_thinking":"off"})");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_THAT(options->aliases, ElementsAre("a", "b"));
  EXPECT_EQ(options->settings.reading.calls.unknown_tool, recipe::UnknownTool::kReject);
  EXPECT_EQ(options->settings.default_thinking, recipe::Thinking::kOff);
}

TEST(ModelOptions, RefusalsNameTheFileAndWhatIsWrong) {
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "object"},
           {"{", "serving.json"},
           {R"({"aliases":"a"})", "aliases"},
           {R"({"aliases":[""]})", "aliases"},
           {R"({"unknown_tools":"reject"})", "unknown_tool"},
           {R"({"unknown_tool":"drop"})", "pass-on, reject or as-text"},
           {R"({"unknown_tool":true})", "pass-on, reject or as-text"}}) {
    const auto options = read(text);
    ASSERT_FALSE(options.ok()) << text;
    EXPECT_THAT(std::string(options.status().message()), HasSubstr("serving.json")) << text;
    EXPECT_THAT(std::string(options.status().message()), HasSubstr(message)) << text;
  }
}

}  // namespace
}  // namespace millrace::api::entrypoint
