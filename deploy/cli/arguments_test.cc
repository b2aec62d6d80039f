#include "deploy/cli/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

namespace millrace::deploy::cli {
namespace {

using ::testing::HasSubstr;

const Surroundings kHome = {
    .program_dir = "/opt/millrace/bin", .working_dir = "/srv", .home_env = "/home/ada"};

Parsed parse(std::vector<const char*> words, const Surroundings& surroundings = kHome) {
  words.insert(words.begin(), "millrace");
  return parse_arguments(static_cast<int>(words.size()), words.data(), surroundings);
}

template <typename Options>
Options parse_as(std::vector<const char*> words) {
  const Parsed parsed = parse(std::move(words));
  const Options* options = parsed.command ? std::get_if<Options>(&*parsed.command) : nullptr;
  return options == nullptr ? ADD_FAILURE() << "another command", Options{} : *options;
}

TEST(Arguments, UpHasTheDefaultsOfTheReadme) {
  const auto up = parse_as<UpOptions>({"up"});
  EXPECT_EQ(up.entrypoint, "127.0.0.1:8000");
  EXPECT_EQ(up.controller, "127.0.0.1:8080");
  EXPECT_EQ(up.prefill, 1);
  EXPECT_EQ(up.decode, 1);
  EXPECT_EQ(up.data_dir, "/home/ada/.local/state/millrace");
  EXPECT_FALSE(up.is_detached);
}

TEST(Arguments, RelativePathsAreMadeAbsolute) {
  EXPECT_EQ(parse_as<UpOptions>({"up", "--model", "models/a/"}).model_dir, "/srv/models/a");
  EXPECT_EQ(parse_as<DownOptions>({"down", "--data-dir", "../x"}).data_dir, "/x");
}

TEST(Arguments, ThinkingHasThreeStates) {
  EXPECT_EQ(parse_as<ChatOptions>({"chat"}).is_thinking, std::nullopt);
  EXPECT_EQ(parse_as<ChatOptions>({"chat", "--thinking"}).is_thinking, true);
  EXPECT_EQ(parse_as<ChatOptions>({"chat", "--no-thinking"}).is_thinking, false);
  EXPECT_EQ(parse({"chat", "--thinking", "--no-thinking"}).exit_status, 2);
}

TEST(Arguments, MistakesAreRefused) {
  for (const std::vector<const char*>& words : std::vector<std::vector<const char*>>{
           {},
           {"fly"},
           {"up", "--prefill", "0"},
           {"up", "--prefill", "many"},
           {"up", "--unknown"},
           {"complete"},
           {"bench"},
           {"recipe"},
           {"recipe", "render"},
           {"recipe", "render", "--encoding", "v3", "r"},
           {"recipe", "parse", "o"},
           {"recipe", "parse", "--request", "r", "--finish", "bored", "o"},
           {"bench", "serve", "--concurrency", "0"},
           {"bench", "serve", "--arrivals"},
           {"bench", "serve", "--trace", "t.csv", "--input-tokens", "5"},
           {"chat", "--temperature", "3"}}) {
    const Parsed parsed = parse(words);
    EXPECT_FALSE(parsed.command.has_value());
    EXPECT_EQ(parsed.exit_status, 2);
  }
}

TEST(Arguments, EveryCommandHasHelpWithAnExample) {
  for (const std::vector<const char*>& words :
       std::vector<std::vector<const char*>>{{"up"},
                                             {"down"},
                                             {"status"},
                                             {"chat"},
                                             {"complete"},
                                             {"bench", "serve"},
                                             {"bench", "fit"},
                                             {"eval"}}) {
    std::vector<const char*> with_help = words;
    with_help.push_back("--help");
    ::testing::internal::CaptureStdout();
    const Parsed parsed = parse(with_help);
    const std::string help = ::testing::internal::GetCapturedStdout();
    EXPECT_FALSE(parsed.command.has_value());
    EXPECT_EQ(parsed.exit_status, 0);
    EXPECT_THAT(help, HasSubstr("Example"));
    EXPECT_THAT(help, HasSubstr(words.back()));
  }
}

TEST(Arguments, RecipeSettingsKeepTheirOrder) {
  const auto render = parse_as<RecipeRenderOptions>(
      {"recipe", "render", "--encoding", "v4", "--old-reasoning", "keep", "--json", "-"});
  using Settings = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(render.rules.settings, (Settings{{"encoding", "v4"}, {"old_reasoning", "keep"}}));
  EXPECT_EQ(render.rules.protocol, "chat");
  EXPECT_EQ(render.request, "-");
  EXPECT_TRUE(render.is_json);
  const auto parsed = parse_as<RecipeParseOptions>(
      {"recipe", "parse", "--request", "r", "--ids", "--finish", "length", "o"});
  EXPECT_EQ(parsed.finish, RecipeParseOptions::Finish::kLength);
  EXPECT_TRUE(parsed.are_ids);
  EXPECT_EQ(parsed.output, "o");
  EXPECT_TRUE(parse_as<RecipeEncodeOptions>({"recipe", "encode", "--special", "l"}).has_special);
}

TEST(DefaultDataDir, FollowsTheEnvironment) {
  EXPECT_EQ(default_data_dir({.data_dir_env = "/d", .state_home_env = "/s", .home_env = "/h"}),
            "/d");
  EXPECT_EQ(default_data_dir({.state_home_env = "/s", .home_env = "/h"}), "/s/millrace");
  EXPECT_EQ(default_data_dir({.home_env = "/h"}), "/h/.local/state/millrace");
  EXPECT_EQ(default_data_dir({}), "/var/tmp/millrace");
}

TEST(DefaultModelDir, IsFoundInASourceTreeAndBesideAnInstalledProgram) {
  std::string name = ::testing::TempDir() + "model_dir_XXXXXX";
  const std::filesystem::path root = mkdtemp(name.data());
  std::filesystem::create_directories(root / "tree/build/dev/bin");
  std::filesystem::create_directories(root / "tree/deploy/models/nano");
  std::filesystem::create_directories(root / "usr/bin");
  std::filesystem::create_directories(root / "usr/share/millrace/models/nano");
  const std::string real_root = std::filesystem::canonical(root).string();
  EXPECT_EQ(default_model_dir(root / "tree/build/dev/bin"), real_root + "/tree/deploy/models/nano");
  EXPECT_EQ(default_model_dir(root / "usr/bin"), real_root + "/usr/share/millrace/models/nano");
  EXPECT_EQ(default_model_dir(root / "usr"), "");
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace millrace::deploy::cli
