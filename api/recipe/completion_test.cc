#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/recipe/completion_request.h"
#include "api/recipe/prepared_request.h"
#include "api/recipe/test_deployment.h"
#include "api/recipe/test_fixtures.h"
#include "api/tokenizer/tokenizer.h"
#include "common/json.h"
#include "common/mapped_file.h"

namespace millrace::api::recipe {
namespace {

using testing::HasSubstr;

class CompletionTest : public testing::Test {
 protected:
  static std::string body(const std::string& members) {
    return R"({"model":"deepseek-flash",)" + members + "}";
  }
  absl::StatusOr<CompletionRequest> parse(const std::string& members) const {
    return parse_completion_request(body(members), nano_.value);
  }
  PreparedRequest prepare(const std::string& members) const {
    auto prepared = prepare_completion(body(members), nano_.value, {"id", 0});
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return *std::move(prepared);
  }
  void expect_refused(const std::string& members, const std::string& field,
                      const std::string& words) const {
    SCOPED_TRACE(members);
    const auto request = parse(members);
    ASSERT_FALSE(request.ok());
    const ErrorDetails details = error_details(request.status());
    EXPECT_EQ(details.param, field);
    EXPECT_THAT(details.message, HasSubstr(words));
  }

  test::NanoDeployment nano_;
};

TEST_F(CompletionTest, ASuffixIsFilledInTheMiddle) {
  const auto request = parse(R"("prompt":"def f(","suffix":"): <｜User｜>")");
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_EQ(request->prompts.size(), 1u);
  std::vector<TokenId> expected =
      nano_.ids("<｜begin▁of▁sentence｜><｜fim▁begin｜>def f(<｜fim▁hole｜>");
  // The suffix is the client's text: what it spells is no control token.
  const auto suffix = nano_.value.tokenizer->encode_text("): <｜User｜>");
  ASSERT_TRUE(suffix.ok());
  expected.insert(expected.end(), suffix->begin(), suffix->end());
  expected.push_back(nano_.control("<｜fim▁end｜>"));
  EXPECT_EQ(request->prompts[0].ids, expected);
}

TEST_F(CompletionTest, AnEmptySuffixIsNone) {
  EXPECT_EQ(parse(R"("prompt":"a","suffix":"")")->prompts[0].ids,
            parse(R"("prompt":"a","suffix":null)")->prompts[0].ids);
}

TEST_F(CompletionTest, ASuffixNeedsTheTokenizersTokens) {
  auto file = read_file(MILLRACE_SOURCE_DIR "/deploy/models/nano/tokenizer.json");
  ASSERT_TRUE(file.ok());
  const std::string spelling = "<｜fim▁hole｜>";
  const std::size_t at = file->find(spelling);
  ASSERT_NE(at, std::string::npos);
  file->replace(at, spelling.size(), "<｜other▁hole｜>");
  const auto tokenizer = tokenizer::Tokenizer::from_json(*file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  nano_.value.tokenizer = tokenizer->get();
  expect_refused(R"("prompt":"a","suffix":"b")", "suffix", "no <｜fim▁hole｜> token");
  EXPECT_TRUE(parse(R"("prompt":"a")").ok());
}

TEST_F(CompletionTest, ABatchHasAPromptForEachOfItsMembers) {
  const PreparedRequest texts = prepare(R"("prompt":["a","b","c"],"n":2,"best_of":2)");
  EXPECT_EQ(texts.prompt, parse(R"("prompt":"a")")->prompts[0].ids);
  ASSERT_EQ(texts.further_prompts.size(), 2u);
  EXPECT_EQ(texts.further_prompts[1], parse(R"("prompt":"c")")->prompts[0].ids);
  EXPECT_EQ(texts.choice_count(), 6u);
  const PreparedRequest ids = prepare(R"("prompt":[[5,6],[7]])");
  EXPECT_EQ(ids.prompt, (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(ids.further_prompts, (std::vector<std::vector<TokenId>>{{7}}));
}

/// Answers of a batch, in the order of their indices.
std::vector<Choice> answers(std::initializer_list<const char*> texts) {
  std::vector<Choice> choices;
  for (const char* text : texts) {
    Choice& choice = choices.emplace_back();
    choice.output.choice = static_cast<std::uint32_t>(choices.size() - 1);
    choice.output.text = text;
  }
  return choices;
}

TEST_F(CompletionTest, EachAnswerEchoesItsOwnPrompt) {
  const PreparedRequest batch = prepare(R"("prompt":["a","b"],"n":2,"echo":true,"echo_ids":true)");
  const Json json = *parse_json(batch.encoder->complete(answers({"1", "2", "3", "4"}), {}));
  ASSERT_EQ(json["choices"].size(), 4u);
  const char* texts[] = {"a1", "a2", "b3", "b4"};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], texts[i]);
    EXPECT_EQ(json["choices"][i]["prompt_token_ids"],
              Json(i < 2 ? batch.prompt : batch.further_prompts[0]));
  }
}

TEST_F(CompletionTest, AStreamBeginsWithWhatItEchoes) {
  PreparedRequest batch = prepare(R"("prompt":[[5,6],"b"],"echo":true,"stream":true)");
  const std::vector<Json> events = test::events_of(batch.encoder->begin());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["choices"][0]["text"], nano_.value.tokenizer->decode(batch.prompt));
  EXPECT_EQ(events[1]["choices"][0]["index"], 1);
  EXPECT_EQ(events[1]["choices"][0]["text"], "b");
  EXPECT_FALSE(events[1]["choices"][0].contains("prompt_token_ids"));
  EXPECT_EQ(prepare(R"("prompt":"b","stream":true)").encoder->begin(), "");
}

TEST_F(CompletionTest, RefusesBadInputAndNamesTheField) {
  expect_refused(R"("n":1)", "prompt", "required");
  expect_refused(R"("prompt":[])", "prompt", "empty");
  expect_refused(R"("prompt":7)", "prompt", "string or a list");
  expect_refused(R"("prompt":["a",7])", "prompt[1]", "string or a list");
  expect_refused(R"("prompt":[[1],[2,-1]])", "prompt[1][1]", "token id");
  expect_refused(R"("prompt":[1,"a"])", "prompt[1]", "token id");
  expect_refused(R"("prompt":"a","suffix":7)", "suffix", "string");
  expect_refused(R"("prompt":[1],"suffix":"b")", "suffix", "must be text");
  expect_refused(R"("prompt":"a","suffix":"b","parse_special":true)", "suffix", "parse_special");
  expect_refused(R"("prompt":"a","best_of":3)", "best_of", "must equal `n`, which is 1");
  expect_refused(R"("prompt":"a","best_of":1,"n":2)", "best_of", "which is 2");
  expect_refused(R"("prompt":"a","echo":1)", "echo", "true or false");
  expect_refused(R"("prompt":"a","echo":true,"logprobs":1)", "echo", "without `logprobs`");
  expect_refused(R"("prompt":"a","logprobs":true)", "logprobs", "integer");
  Json many = Json::array();
  for (int i = 0; i < 65; ++i) many.push_back("a");
  expect_refused(R"("prompt":)" + many.dump(), "prompt", "at most 64");
  many.erase(many.begin());
  expect_refused(R"("n":3,"prompt":)" + many.dump(), "n", "makes 192 answers");
}

}  // namespace
}  // namespace millrace::api::recipe
