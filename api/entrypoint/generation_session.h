#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/entrypoint/entrypoint_metrics.h"
#include "api/entrypoint/request_table.h"
#include "api/recipe/deployment.h"
#include "api/recipe/output_parser.h"
#include "api/recipe/prepared_request.h"
#include "common/http/event_loop.h"
#include "common/http/http_server.h"

namespace millrace::api::entrypoint {

/// A client that waits for its answer, and how its protocol tells it of a failure.
struct Client {
  std::string request_id;
  recipe::ErrorForm errors;
  std::unique_ptr<common::http::ResponseWriter> writer;

  /// Answers with a failure before anything was sent.
  void refuse(const absl::Status& status) const;
  /// Answers; the reply gets the headers that name the request.
  void respond(common::http::ServerReply reply) const;
};

/// A failure as an answer: the status of the code, Retry-After where trying again makes sense.
common::http::ServerReply error_reply(const absl::Status& status, const recipe::ErrorForm& errors,
                                      const std::string& request_id);

/// Tells the request's id, by the names that clients of either family log.
void name_request(const std::string& request_id, common::http::ServerReply& reply);

/// What all answers of an entrypoint share; all borrowed.
struct SessionContext {
  common::http::EventLoop& loop;
  const recipe::Deployment& deployment;
  const EntrypointMetrics& metrics;
  std::chrono::milliseconds keep_alive;
};

/// One client's answer, of one choice or several: tokens in, bytes of its protocol out. A stream's
/// head is sent with its first token, so that a failure before it gets a proper status; when the
/// first token takes long, the head goes out with a comment, to keep proxies from closing; a begun
/// stream that is silent gets its protocol's keep-alive. Belongs to the loop's thread.
class GenerationSession final : public OutputSink {
 public:
  GenerationSession(const SessionContext& context, recipe::PreparedRequest request, Client client);

  void cached(std::uint32_t choice, std::uint32_t tokens) override;
  std::optional<Outcome> deliver(std::uint32_t choice,
                                 const std::vector<recipe::GeneratedToken>& tokens) override;
  Outcome complete(std::uint32_t choice, recipe::FinishReason reason) override;
  void fail(const absl::Status& status) override;

 private:
  struct ChoiceState {
    ChoiceState(const recipe::Deployment& deployment, const recipe::ParseOptions& parsing)
        : parser(*deployment.tokenizer, deployment.control, parsing) {}

    recipe::OutputParser parser;
    recipe::Choice collected;  // of an answer that is not streamed
    std::uint32_t reasoning_tokens = 0;
  };

  void begin_stream();
  void begin_events();
  void send(recipe::OutputDelta delta);
  void respond();
  void arm_keep_alive();

  const SessionContext context_;
  std::unique_ptr<recipe::ResponseEncoder> encoder_;
  const bool is_streamed_;
  const std::uint32_t choices_per_prompt_;
  const Client client_;
  std::deque<ChoiceState> choices_;  // which do not move
  std::size_t open_choices_;
  recipe::Usage usage_;
  bool has_head_ = false;    // of a stream: HTTP head sent
  bool has_events_ = false;  // of a stream: its opening events sent
  bool is_quiet_ = false;    // nothing was written since the keep-alive timer was set
  common::http::EventLoop::Timer keep_alive_timer_;
};

}  // namespace millrace::api::entrypoint
