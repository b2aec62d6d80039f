#include "api/recipe/answer_writer.h"

#include <gtest/gtest.h>

#include "api/recipe/request_error.h"
#include "api/recipe/test_deployment.h"
#include "common/json.h"

namespace millrace::api::recipe {
namespace {

class AnswerWriterTest : public testing::Test {
 protected:
  absl::StatusOr<AnswerWriter> open(PrepareFunction prepare, const std::string& members) {
    auto prepared = prepare(R"({"model":"deepseek-flash",)" + members + "}", nano_.value, {"7", 0});
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return AnswerWriter::open(*std::move(prepared), nano_.value);
  }
  absl::StatusOr<AnswerWriter> chat(const std::string& members) {
    return open(
        prepare_chat,
        R"("messages":[{"role":"user","content":"q"}],"thinking":{"type":"disabled"})" + members);
  }

  std::vector<GeneratedToken> tokens(std::string_view text) const {
    std::vector<GeneratedToken> tokens;
    for (const TokenId id : nano_.ids(text)) tokens.push_back({id, 0, {}});
    return tokens;
  }

  static std::string text_of(const std::vector<std::string>& events) {
    std::string text;
    for (const std::string& event : events) {
      const Json json = *parse_json(event);
      if (json["choices"].empty()) continue;
      text += json["choices"][0]["delta"].value("content", "");
    }
    return text;
  }

  test::NanoDeployment nano_;
};

TEST_F(AnswerWriterTest, AStreamBeginsOnceAndEndsWithItsReason) {
  auto writer = chat("");
  ASSERT_TRUE(writer.ok());
  const std::vector<std::string> opening = writer->push({});
  ASSERT_EQ(opening.size(), 1u);
  EXPECT_TRUE(writer->push({}).empty());
  EXPECT_EQ(text_of(writer->push(tokens("Hello"))), "Hello");
  const std::vector<std::string> ending = writer->finish(FinishReason::kLength);
  EXPECT_EQ((*parse_json(ending.back()))["choices"][0]["finish_reason"], "length");
}

TEST_F(AnswerWriterTest, NothingCountsBehindAStopString) {
  auto writer = chat(R"(,"stop":"B")");
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(text_of(writer->push(tokens("A B C"))), "A ");
  EXPECT_TRUE(writer->is_done());
  EXPECT_TRUE(writer->push(tokens("D")).empty());
  // The engine may have been cut off there, but the answer ended before.
  const std::vector<std::string> ending = writer->finish(FinishReason::kLength);
  EXPECT_EQ((*parse_json(ending.back()))["choices"][0]["finish_reason"], "stop");
}

TEST_F(AnswerWriterTest, TheWholeAnswerCountsItsTokens) {
  auto writer = chat("");
  ASSERT_TRUE(writer.ok());
  const auto hello = tokens("Hello");
  const Json body = *parse_json(writer->complete(hello, FinishReason::kStop));
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(body["usage"]["completion_tokens"], hello.size());
}

TEST_F(AnswerWriterTest, NamedEventsAreTakenApart) {
  auto writer = open(prepare_messages,
                     R"("max_tokens":9,"messages":[{"role":"user","content":"q"}],"stream":true)");
  ASSERT_TRUE(writer.ok());
  writer->push(tokens("x</think>y"));
  const std::vector<std::string> ending = writer->finish(FinishReason::kStop);
  EXPECT_EQ((*parse_json(ending.back()))["type"], "message_stop");
}

TEST_F(AnswerWriterTest, RefusesSeveralAnswers) {
  EXPECT_EQ(error_details(chat(R"(,"n":2)").status()).param, "n");
  const auto batch = open(prepare_completion, R"("prompt":["a","b"])");
  EXPECT_EQ(error_details(batch.status()).param, "prompt");
}

}  // namespace
}  // namespace millrace::api::recipe
