#include "api/entrypoint/generation_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/entrypoint/fake_cluster.h"
#include "common/json.h"

namespace millrace::api::entrypoint {
namespace {

using testing::HasSubstr;

/// Keeps what it is told, where the test can see it.
struct Answer {
  common::http::ServerReply reply;
  std::string stream;
  bool is_finished = false;
};

class Recorder final : public common::http::ResponseWriter {
 public:
  explicit Recorder(Answer& answer) : answer_(answer) {}
  void respond(common::http::ServerReply reply) override { answer_.reply = std::move(reply); }
  void begin_stream(common::http::ServerReply head) override { answer_.reply = std::move(head); }
  void write(std::string_view bytes) override { answer_.stream.append(bytes); }
  void finish_stream() override { answer_.is_finished = true; }
  void on_close(std::function<void()> /*callback*/) override {}

 private:
  Answer& answer_;
};

class GenerationSessionTest : public testing::Test {
 protected:
  std::unique_ptr<GenerationSession> chat(const std::string& members) {
    return session(recipe::prepare_chat, recipe::kOpenAiErrors, members);
  }
  std::unique_ptr<GenerationSession> message(const std::string& members) {
    return session(recipe::prepare_messages, recipe::kMessagesErrors, members);
  }

  std::vector<recipe::GeneratedToken> tokens(std::string_view text) const {
    const auto ids = tokenizer_->encode_with_special(text);
    EXPECT_TRUE(ids.ok()) << ids.status();
    std::vector<recipe::GeneratedToken> tokens;
    for (const TokenId id : *ids) tokens.push_back({id, 0, {}});
    return tokens;
  }

  std::string metrics() const { return registry_.exposition(); }
  const Answer& answer() const { return answer_; }

 private:
  std::unique_ptr<GenerationSession> session(recipe::PrepareFunction prepare,
                                             const recipe::ErrorForm& errors,
                                             const std::string& members) {
    auto prepared =
        prepare(R"({"model":"nano","max_tokens":9,"messages":[{"role":"user","content":"q"}])" +
                    members + "}",
                deployment_, {"7", 0});
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return std::make_unique<GenerationSession>(
        SessionContext{loop_, deployment_, metrics_, std::chrono::minutes(1)}, *std::move(prepared),
        Client{"7", errors, std::make_unique<Recorder>(answer_)});
  }

  const std::unique_ptr<tokenizer::Tokenizer> tokenizer_ = test::nano_tokenizer();
  const recipe::Deployment deployment_ = test::nano_deployment(*tokenizer_);
  common::http::EventLoop loop_;
  Registry registry_;
  const EntrypointMetrics metrics_{registry_};
  Answer answer_;
};

constexpr const char* kTool = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";

TEST_F(GenerationSessionTest, ACallEndsTheAnswerAsToolCalls) {
  const auto session = chat(kTool);
  EXPECT_EQ(session->deliver(0, tokens("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">")),
            std::nullopt);
  EXPECT_EQ(session->deliver(0, tokens("</｜DSML｜ invoke></｜DSML｜ calls> more")),
            Outcome::kToolCalls);
  EXPECT_EQ((*parse_json(answer().reply.body))["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_THAT(metrics(), HasSubstr("millrace_tool_call_problems_total{reason=\"stray_text\"} 0\n"));
}

TEST_F(GenerationSessionTest, ABrokenCallIsCountedByItsProblem) {
  const auto session = chat(kTool);
  EXPECT_EQ(session->deliver(
                0, tokens("<｜DSML｜ calls><｜DSML｜ invoke name=\"f\">city=x</｜DSML｜ invoke>")),
            Outcome::kLength);
  EXPECT_EQ((*parse_json(answer().reply.body))["choices"][0]["finish_reason"], "length");
  EXPECT_THAT(metrics(), HasSubstr("millrace_tool_call_problems_total{reason=\"stray_text\"} 1\n"));
}

TEST_F(GenerationSessionTest, AStopStringIsToldFromTheEnginesEnd) {
  const auto stopped = message(R"(,"stop_sequences":["END"])");
  EXPECT_EQ(stopped->deliver(0, tokens("so END it")), Outcome::kStopString);
  const Json body = *parse_json(answer().reply.body);
  EXPECT_EQ(body["stop_reason"], "stop_sequence");
  EXPECT_EQ(body["stop_sequence"], "END");
  const auto ended = message("");
  EXPECT_EQ(ended->deliver(0, tokens("so")), std::nullopt);
  EXPECT_EQ(ended->complete(0, recipe::FinishReason::kStop), Outcome::kStop);
  EXPECT_EQ((*parse_json(answer().reply.body))["stop_reason"], "end_turn");
}

TEST_F(GenerationSessionTest, ChoicesAreParsedApartAndAnsweredTogether) {
  const auto session = chat(R"(,"n":2,"stop":["END"],"thinking":{"type":"enabled"})");
  EXPECT_EQ(session->deliver(1, tokens("why</think>b")), std::nullopt);
  EXPECT_EQ(session->deliver(0, tokens("how so</think>a")), std::nullopt);
  EXPECT_EQ(session->deliver(1, tokens(" END")), Outcome::kStopString);
  EXPECT_EQ(answer().reply.body, "");
  EXPECT_EQ(session->complete(0, recipe::FinishReason::kLength), Outcome::kLength);
  const Json body = *parse_json(answer().reply.body);
  ASSERT_EQ(body["choices"].size(), 2u);
  EXPECT_EQ(body["choices"][0]["index"], 0);
  EXPECT_EQ(body["choices"][0]["message"]["reasoning_content"], "how so");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "a");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_EQ(body["choices"][1]["message"]["reasoning_content"], "why");
  EXPECT_EQ(body["choices"][1]["message"]["content"], "b ");
  EXPECT_EQ(body["choices"][1]["finish_reason"], "stop");
  const std::size_t reasoning = tokens("why</think>").size() + tokens("how so</think>").size();
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], reasoning);
}

TEST_F(GenerationSessionTest, AFailureHasTheProtocolsForm) {
  message(R"(,"stream":true)")->fail(absl::UnavailableError("no engine"));
  EXPECT_EQ(answer().reply.status, 529);
  EXPECT_EQ(answer().reply.body,
            R"({"type":"error","error":{"type":"overloaded_error","message":"no engine"},)"
            R"("request_id":"7"})");
  const auto begun = message(R"(,"stream":true)");
  begun->deliver(0, tokens("so"));
  begun->fail(absl::InternalError("lost"));
  EXPECT_TRUE(answer().is_finished);
  EXPECT_THAT(answer().stream,
              testing::EndsWith("event: error\ndata: "
                                R"({"type":"error","error":{"type":"api_error","message":"lost"},)"
                                R"("request_id":"7"})"
                                "\n\n"));
}

}  // namespace
}  // namespace millrace::api::entrypoint
