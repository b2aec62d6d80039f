#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/entrypoint/generation_session.h"
#include "api/entrypoint/response_table.h"
#include "api/recipe/responses_encoder.h"
#include "common/http/http_server.h"

namespace millrace::api::entrypoint {

/// One response from its request until it is stored: stands between the session that generates it
/// and the clients that read it. A foreground response has one client and ends with it; one in the
/// background goes on without any, and is generated as a stream whatever its clients want.
///
/// What ends the answer is sent only when the response is stored: a client that was told of a
/// response finds it. Belongs to the loop's thread; session and writers go before the job does.
class ResponseJob {
 public:
  struct Hooks {
    /// Stores, and calls stored() on the loop; never from within.
    std::function<void(StoredResponse response)> store;
    /// Nothing is left to do: the job is to be destroyed, not from within.
    std::function<void()> over;
  };

  /// Takes what was prepared, but for the engines' request.
  ResponseJob(recipe::PreparedResponse prepared, std::string account, Client client, Hooks hooks);
  ~ResponseJob();

  /// What the session is to be given. Once each.
  std::unique_ptr<recipe::ResponseEncoder> make_encoder();
  std::unique_ptr<common::http::ResponseWriter> make_writer();
  bool is_streamed_inside() const { return is_streamed_ || is_background_; }

  /// The engines work on it, or it was refused already: a client that does not wait gets its
  /// answer.
  void admitted();

  void stored(const absl::Status& status);

  /// Sends a background stream's events behind that number, and those to come. Takes the client's
  /// writer unless it fails.
  absl::Status subscribe(Client& client, std::int64_t starting_after);

  /// Ends the generation; the response is cancelled. kInvalidArgument in the foreground.
  absl::Status cancel();
  /// Ends a background generation; in no case the response is stored.
  void forget();

  std::string response() const { return encoder_->response(); }
  const std::string& response_id() const { return encoder_->response_id(); }
  /// Whose it is: nobody else is to see it.
  const std::string& account() const { return account_; }
  const std::string& input_items() const { return input_items_; }
  bool is_stored() const { return is_stored_; }
  /// Nothing is added any more; the store has been given the response, if it is to have it.
  bool is_generated() const { return is_generated_; }

 private:
  class Encoder;
  class Writer;
  using StreamId = std::uint64_t;
  struct Stream {
    StreamId id = 0;
    std::unique_ptr<common::http::ResponseWriter> writer;
  };

  void on_reply(common::http::ServerReply reply);
  void on_events(std::string_view bytes);
  void on_generated();
  void on_session_gone();
  void begin_stream(std::unique_ptr<common::http::ResponseWriter> writer,
                    common::http::ServerReply head);
  void write(std::string_view bytes);
  void log(std::string_view events);
  void stop_generation();

  const bool is_background_;
  bool is_stored_;
  const bool is_streamed_;
  const std::string account_;
  const std::string input_items_;
  const std::shared_ptr<recipe::ResponsesEncoder> encoder_;
  const Hooks hooks_;
  Client client_;  // its writer is gone once it has its answer
  std::vector<Stream> streams_;
  StreamId last_stream_ = 0;
  std::function<void()> cancel_;  // takes the request from the engines; destroys the session
  bool is_generated_ = false;
  bool is_over_ = false;
  common::http::ServerReply reply_;  // of an answer that is not streamed
  std::string last_events_;          // held back until the response is stored
  std::string log_;                  // of a background stream
  bool is_log_full_ = false;
};

/// Of a stream's events in a row (numbers count from 0) those behind a number.
std::string_view events_behind(std::string_view events, std::int64_t number);

/// The head of an event stream that answers this request.
common::http::ServerReply event_stream_head(const std::string& request_id);

}  // namespace millrace::api::entrypoint
