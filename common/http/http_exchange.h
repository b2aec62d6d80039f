#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/http/http_server.h"

namespace millrace::common::http {

/// The answer to one request, between the writer that a handler holds and the connection that sends
/// it: framing, the queue of bytes and who knows what about the end. Does no I/O. One thread.
class HttpExchange {
 public:
  struct Options {
    bool is_http_1_0 = false;  ///< no chunked answers: the end of a stream closes the connection
    bool is_head_request = false;  ///< the answer has no body
    bool keep_alive = true;
    std::size_t queued_write_bytes = 0;
  };
  /// `wake` is called whenever the connection should look again. It must not call back at once.
  HttpExchange(const Options& options, std::function<void()> wake);

  /// The handler's end. The exchange must be held by a shared_ptr.
  static std::unique_ptr<ResponseWriter> make_writer(std::shared_ptr<HttpExchange> exchange);

  // The connection's end.
  bool has_outgoing() const { return !outgoing_.empty(); }
  std::string take_outgoing() { return std::exchange(outgoing_, {}); }
  /// The answer is queued to its last byte.
  bool is_complete() const { return state_ == State::kComplete; }
  /// Nothing more will come although the answer is not complete: close.
  bool is_broken() const { return is_abandoned_ || is_overflowed_; }
  bool keeps_alive() const { return options_.keep_alive; }
  /// This answer is the connection's last, if its head has not been queued yet.
  void forbid_keep_alive();
  /// The client has gone: tells the handler, unless the answer is complete. Call from the loop.
  void report_close();

 private:
  class Writer;
  enum class State { kWaiting, kStreaming, kComplete };
  void respond(const ServerReply& reply);
  void begin_stream(const ServerReply& head);
  void write(std::string_view bytes);
  void finish_stream();
  void queue(std::initializer_list<std::string_view> pieces);

  Options options_;
  std::function<void()> wake_;
  std::function<void()> on_close_;
  State state_ = State::kWaiting;
  bool is_abandoned_ = false;
  bool is_overflowed_ = false;
  std::string outgoing_;
};

/// The head of an answer, up to the blank line. `framing` is one header line or empty.
std::string response_head(const ServerReply& reply, std::string_view framing, bool keep_alive);

/// The standard phrase of a status; "Unknown" when there is none.
std::string_view reason_phrase(int status);

}  // namespace millrace::common::http
