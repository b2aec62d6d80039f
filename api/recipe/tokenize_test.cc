#include "api/recipe/tokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/recipe/prepared_request.h"
#include "api/recipe/request_error.h"
#include "api/recipe/test_deployment.h"
#include "common/json.h"

namespace millrace::api::recipe {
namespace {

class TokenizeTest : public testing::Test {
 protected:
  Json tokenized(const std::string& body) const {
    const auto answer = tokenize(body, nano_.value, 4096);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *parse_json(*answer) : Json();
  }
  std::vector<TokenId> text(std::string_view spelled) const {
    return *nano_.value.tokenizer->encode_text(spelled);
  }

  test::NanoDeployment nano_;
};

TEST_F(TokenizeTest, APromptIsCountedAsCompletionsTakesIt) {
  const Json answer = tokenized(R"({"model":"deepseek-flash","prompt":"Hi <think>"})");
  const auto prepared = prepare_completion(R"({"model":"deepseek-flash","prompt":"Hi <think>"})",
                                           nano_.value, {"1", 0});
  ASSERT_TRUE(prepared.ok());
  EXPECT_EQ(answer["tokens"], Json(prepared->prompt));
  EXPECT_EQ(answer["count"], prepared->prompt.size());
  EXPECT_EQ(answer["max_model_len"], 4096);
  EXPECT_TRUE(answer["token_strs"].is_null());
  EXPECT_EQ(tokenized(R"({"prompt":"Hi","add_special_tokens":false})")["tokens"], Json(text("Hi")));
}

TEST_F(TokenizeTest, MessagesAreCountedAsChatTakesThem) {
  const std::string members =
      R"("messages":[{"role":"user","content":"Hi"}],
         "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","maximum":1e400}}}]})";
  const auto prepared =
      prepare_chat(R"({"model":"deepseek-flash",)" + members, nano_.value, {"1", 0});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(tokenized("{" + members)["tokens"], Json(prepared->prompt));
  EXPECT_EQ(tokenized(R"({"model":"deepseek-flash",)" + members)["tokens"], Json(prepared->prompt));
}

TEST_F(TokenizeTest, AFinalMessageCanBeContinued) {
  const Json answer = tokenized(
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"An"}],
          "thinking":{"type":"disabled"},"add_generation_prompt":false,"continue_final_message":true})");
  EXPECT_EQ(answer["tokens"],
            Json(nano_.ids("<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>An")));
}

TEST_F(TokenizeTest, TokensAreSpelledAsInTheFile) {
  const Json answer = tokenized(R"({"prompt":" a\n\u0001é","return_token_strs":true})");
  std::string joined;
  for (const Json& string : answer["token_strs"]) joined += string.get<std::string>();
  EXPECT_EQ(joined, "<｜begin▁of▁sentence｜>ĠaĊāÃ©");
  EXPECT_EQ(answer["token_strs"].size(), answer["tokens"].size());
}

TEST_F(TokenizeTest, DetokenizeIsTheInverse) {
  const Json tokens = tokenized(R"({"prompt":"Hi 中"})")["tokens"];
  const auto answer = detokenize(R"({"tokens":)" + tokens.dump() + "}", nano_.value);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(*answer, R"({"prompt":"<｜begin▁of▁sentence｜>Hi 中"})");
}

TEST_F(TokenizeTest, ErrorsNameTheField) {
  const std::string messages = R"({"messages":[{"role":"user","content":"q"}],)";
  const std::pair<std::string, const char*> refusals[] = {
      {R"({})", "prompt"},
      {R"({"prompt":"a","messages":[]})", "prompt"},
      {R"({"prompt":7})", "prompt"},
      {R"({"prompt":"a","model":"other"})", "model"},
      {R"({"prompt":"a","add_special_tokens":1})", "add_special_tokens"},
      {R"({"prompt":"a","return_token_strs":"yes"})", "return_token_strs"},
      {R"({"messages":[{"role":"user","content":7}]})", "messages[0].content"},
      {messages + R"("add_special_tokens":true})", "add_special_tokens"},
      {messages + R"("add_generation_prompt":false})", "add_generation_prompt"},
      {messages + R"("continue_final_message":true})", "continue_final_message"},
      {messages + R"("chat_template":"x"})", "chat_template"},
  };
  for (const auto& [body, field] : refusals) {
    SCOPED_TRACE(body);
    EXPECT_EQ(error_details(tokenize(body, nano_.value, 1).status()).param, field);
  }
  EXPECT_EQ(error_details(detokenize("{}", nano_.value).status()).param, "tokens");
  EXPECT_EQ(error_details(detokenize(R"({"tokens":[1,"2"]})", nano_.value).status()).param,
            "tokens[1]");
  EXPECT_EQ(error_details(detokenize(R"({"tokens":[99999]})", nano_.value).status()).param,
            "tokens[0]");
}

}  // namespace
}  // namespace millrace::api::recipe
