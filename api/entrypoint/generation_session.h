#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "api/entrypoint/request_table.h"
#include "api/recipe/deployment.h"
#include "api/recipe/output_parser.h"
#include "api/recipe/prepared_request.h"
#include "common/http/event_loop.h"
#include "common/http/http_server.h"

namespace millrace::api::entrypoint {

/// The HTTP answer to a failure before anything was sent: OpenAI's error form, the status of the
/// code, Retry-After where trying again makes sense.
common::http::ServerReply error_reply(const absl::Status& status);

/// One client's answer: tokens in, bytes of its protocol out. A stream's head is sent with its
/// first token, so that a failure before it gets a proper status; when the first token takes long,
/// the head goes out with a comment, to keep proxies from closing. Belongs to the loop's thread.
class GenerationSession final : public OutputSink {
 public:
  /// Deployment and loop are borrowed.
  GenerationSession(common::http::EventLoop& loop, const recipe::Deployment& deployment,
                    recipe::PreparedRequest request,
                    std::unique_ptr<common::http::ResponseWriter> writer,
                    std::chrono::milliseconds keep_alive);

  Appetite deliver(const std::vector<recipe::GeneratedToken>& tokens) override;
  void complete(recipe::FinishReason reason) override;
  void fail(const absl::Status& status) override;

 private:
  void begin_stream();
  void begin_events();
  void send(recipe::OutputDelta delta);
  void arm_keep_alive();

  common::http::EventLoop& loop_;
  const std::chrono::milliseconds keep_alive_;
  std::unique_ptr<recipe::ResponseEncoder> encoder_;
  const bool is_streamed_;
  std::unique_ptr<common::http::ResponseWriter> writer_;
  recipe::OutputParser parser_;
  recipe::Usage usage_;
  recipe::OutputDelta output_;  // of an answer that is not streamed
  bool has_head_ = false;       // of a stream: HTTP head sent
  bool has_events_ = false;     // of a stream: its opening events sent
  bool is_quiet_ = false;       // nothing was written since the keep-alive timer was set
  common::http::EventLoop::Timer keep_alive_timer_;
};

}  // namespace millrace::api::entrypoint
