#include "deploy/cli/recipe_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::deploy::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kNano = MILLRACE_SOURCE_DIR "/deploy/models/nano";
constexpr const char* kRequest =
    R"({"model":"m","messages":[{"role":"user","content":"Hi"}],"thinking":{"type":"disabled"},
        "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",
                  "properties":{"n":{"type":"integer","maximum":1e400}}}}}]})";
constexpr const char* kPrompt = R"({"model":"m","messages":[{"role":"user","content":"Hi"}]})";

/// A file that is gone at the end of the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content)
      : path_(testing::TempDir() + "recipe_command_test_" + std::to_string(next_number_++)) {
    std::FILE* const file = std::fopen(path_.c_str(), "wb");
    EXPECT_NE(file, nullptr);
    if (file == nullptr) return;
    EXPECT_EQ(std::fwrite(content.data(), 1, content.size(), file), content.size());
    std::fclose(file);
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  static inline int next_number_ = 0;
  std::string path_;
};

struct Ran {
  absl::Status status;
  std::string output;
};

Ran render(const std::string& request, RecipeRenderOptions options, const Terminal& terminal = {}) {
  options.rules.tokenizer = kNano;
  options.request = "-";
  std::istringstream input(request);
  std::ostringstream output;
  absl::Status status = render_recipe(options, terminal, input, output);
  return {std::move(status), output.str()};
}

Ran parse(const std::string& text, RecipeParseOptions options,
          const std::string& request = kRequest) {
  const TemporaryFile file(request);
  options.rules.tokenizer = str_cat(kNano, "/tokenizer.json");
  options.request = file.path();
  options.output = "-";
  std::istringstream input(text);
  std::ostringstream output;
  absl::Status status = parse_recipe(options, input, output);
  return {std::move(status), output.str()};
}

Ran encode(const std::string& lines, bool has_special) {
  std::istringstream input(lines);
  std::ostringstream output;
  absl::Status status =
      encode_recipe({.tokenizer = kNano, .lines = "-", .has_special = has_special}, input, output);
  return {std::move(status), output.str()};
}

TEST(RecipeRender, PrintsThePromptAndItsIds) {
  const Ran plain = render(kPrompt, {});
  ASSERT_TRUE(plain.status.ok()) << plain.status;
  EXPECT_THAT(plain.output, StartsWith("<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 75"));
  EXPECT_THAT(plain.output, HasSubstr("<｜User｜>Hi<｜Assistant｜><think>\n\n"));
  EXPECT_THAT(plain.output, HasSubstr(" tokens: 0 "));
}

TEST(RecipeRender, ColoursTokensOnATerminal) {
  const Ran coloured = render(kPrompt, {}, {.has_colour = true});
  ASSERT_TRUE(coloured.status.ok()) << coloured.status;
  EXPECT_THAT(coloured.output, HasSubstr("\x1b[1;30;43m<｜User｜>\x1b[0m\x1b[30;4"));
  EXPECT_THAT(coloured.output, HasSubstr("↵\x1b[0m\n"));
}

TEST(RecipeRender, PrintsOneObjectWithTheOptionsThatCount) {
  const Ran ran = render(kRequest, {.rules = {.settings = {{"encoding", "v4"}}}, .is_json = true});
  ASSERT_TRUE(ran.status.ok()) << ran.status;
  const Json json = *parse_json(ran.output);
  EXPECT_THAT(json["prompt"].get<std::string>(), HasSubstr("\"maximum\": 1e400"));
  EXPECT_EQ(json["ids"][0], 0);
  EXPECT_TRUE(json["images"].empty());
  EXPECT_EQ(json["options"]["encoding"], "v4");
  EXPECT_EQ(json["options"]["old_reasoning"], "drop-without-tools");
  EXPECT_EQ(json["options"]["begins_in"], "answer");
  EXPECT_EQ(json["options"]["tools"], Json::array({"f"}));
  EXPECT_EQ(json["options"]["sampling"]["temperature"], 1.0);
}

TEST(RecipeRender, ReadsEveryProtocol) {
  const std::string messages =
      R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"}]})";
  const Ran ran = render(messages, {.rules = {.protocol = "messages"}});
  ASSERT_TRUE(ran.status.ok()) << ran.status;
  EXPECT_EQ(ran.output, render(kPrompt, {}).output);
  const Ran responses =
      render(R"({"model":"m","input":"Hi"})", {.rules = {.protocol = "responses"}});
  ASSERT_TRUE(responses.status.ok()) << responses.status;
  EXPECT_EQ(responses.output, ran.output);
  EXPECT_THAT(std::string(render(messages, {.rules = {.protocol = "x"}}).status.message()),
              HasSubstr("there are chat, "));
}

TEST(RecipeRender, ErrorsNameFileAndField) {
  const Ran ran = render(R"({"model":"m","messages":[{"role":"user","content":7}]})", {});
  EXPECT_THAT(std::string(ran.status.message()), StartsWith("standard input: "));
  EXPECT_THAT(std::string(ran.status.message()), HasSubstr("(field messages[0].content)"));
  RecipeRenderOptions missing;
  missing.rules.tokenizer = kNano;
  missing.request = "/nowhere/request.json";
  std::istringstream input;
  std::ostringstream output;
  EXPECT_EQ(std::string(render_recipe(missing, {}, input, output).message()),
            "/nowhere/request.json: cannot be read");
  missing.rules.tokenizer = "/nowhere/tokenizer.json";
  EXPECT_THAT(std::string(render_recipe(missing, {}, input, output).message()),
              StartsWith("/nowhere/tokenizer.json: "));
}

constexpr const char* kCall =
    "Sure.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"n\" "
    "string=\"false\">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

TEST(RecipeParse, PrintsTheProtocolsObject) {
  const Ran ran = parse(kCall, {});
  ASSERT_TRUE(ran.status.ok()) << ran.status;
  const Json json = *parse_json(ran.output);
  EXPECT_EQ(json["id"], "chatcmpl-recipe");
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Sure.");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"n": 3})");
}

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) values.push_back(*parse_json(line));
  return values;
}

TEST(RecipeParse, PrintsEventsOneALine) {
  const Ran ran = parse(kCall, {.is_streamed = true});
  ASSERT_TRUE(ran.status.ok()) << ran.status;
  std::string arguments;
  const std::vector<Json> events = lines_of(ran.output);
  for (const Json& event : events) {
    const Json& delta = event["choices"][0]["delta"];
    if (!delta.contains("tool_calls")) continue;
    arguments += delta["tool_calls"][0]["function"]["arguments"].get<std::string>();
  }
  EXPECT_EQ(arguments, R"({"n": 3})");
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "tool_calls");
}

TEST(RecipeParse, AStreamThatHasNotEndedHasNoFinish) {
  using Finish = RecipeParseOptions::Finish;
  const Ran open = parse("Hi", {.is_streamed = true, .finish = Finish::kNone});
  ASSERT_TRUE(open.status.ok()) << open.status;
  for (const Json& event : lines_of(open.output)) {
    EXPECT_TRUE(event["choices"][0]["finish_reason"].is_null());
  }
  const Ran cut = parse("Hi", {.finish = Finish::kLength});
  EXPECT_EQ((*parse_json(cut.output))["choices"][0]["finish_reason"], "length");
  EXPECT_THAT(std::string(parse("Hi", {.finish = Finish::kNone}).status.message()),
              HasSubstr("--stream"));
}

TEST(RecipeParse, TakesChunksOfIds) {
  const std::vector<Json> hello = lines_of(encode(R"({"text":"Hello there"})", false).output);
  const Json ids = Json::array({hello.at(0)["ids"], Json::array({1})});
  const Ran ran = parse(ids.dump(), {.are_ids = true});
  ASSERT_TRUE(ran.status.ok()) << ran.status;
  EXPECT_EQ((*parse_json(ran.output))["choices"][0]["message"]["content"], "Hello there");
  EXPECT_EQ(std::string(parse("[[1],[2,99999]]", {.are_ids = true}).status.message()),
            "standard input: [1][1]: must be a token id from 0 to 2047");
  EXPECT_EQ(std::string(parse("[1]", {.are_ids = true}).status.message()),
            "standard input: output: must be a list of lists of token ids");
}

TEST(RecipeParse, RefusesWhatItCannotShow) {
  const std::string two = R"({"model":"m","n":2,"messages":[{"role":"user","content":"Hi"}]})";
  EXPECT_THAT(std::string(parse("x", {}, two).status.message()), HasSubstr("(field n)"));
  EXPECT_THAT(std::string(parse("\xff", {}).status.message()), StartsWith("standard input: "));
  EXPECT_THAT(std::string(parse("x", {}, "[]").status.message()), HasSubstr("JSON object"));
}

TEST(RecipeEncode, TurnsLinesIntoIds) {
  const std::string line = R"({"text":"a</think>"})";
  const Ran plain = encode(line + "\n" + line + "\n", false);
  ASSERT_TRUE(plain.status.ok()) << plain.status;
  const std::vector<Json> without = lines_of(plain.output);
  ASSERT_EQ(without.size(), 2u);
  EXPECT_EQ(without[0], without[1]);
  const std::vector<Json> with = lines_of(encode(line, true).output);
  EXPECT_EQ(with.at(0)["ids"].size(), 2u);
  EXPECT_GT(without[0]["ids"].size(), 2u);
}

TEST(RecipeEncode, ErrorsNameTheLine) {
  const Ran ran = encode("{\"text\":\"a\"}\n{\"texts\":\"a\"}\n", false);
  EXPECT_THAT(std::string(ran.status.message()), StartsWith("standard input:2: "));
  EXPECT_THAT(std::string(ran.status.message()), HasSubstr("text"));
  EXPECT_EQ(lines_of(ran.output).size(), 1u);
  EXPECT_THAT(std::string(encode("{", false).status.message()), StartsWith("standard input:1: "));
  EXPECT_THAT(std::string(encode("[1]", false).status.message()), HasSubstr("object"));
}

}  // namespace
}  // namespace millrace::deploy::cli
