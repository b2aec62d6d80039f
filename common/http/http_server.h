#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/http/event_loop.h"

namespace millrace::common::http {

/// A request as it arrived, complete.
struct ServerRequest {
  std::string method;
  std::string path;                                          ///< without the query
  std::string query;                                         ///< behind '?', not decoded
  std::vector<std::pair<std::string, std::string>> headers;  ///< names in lower case
  std::string body;

  /// The first header of that name (lower case); empty when there is none.
  std::string_view header(std::string_view name) const;
};

/// A complete answer.
struct ServerReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;  ///< further ones
};

/// Answers one request: either respond() once, or begin_stream(), write() any number of times and
/// finish_stream(). It may outlive the handler's call. Destroying it before the answer is complete
/// closes the connection, so that a cut stream is never mistaken for a whole one.
///
/// Belongs to the loop's thread. Calls after the connection is gone do nothing.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  virtual void respond(ServerReply reply) = 0;

  /// Sends the head of a chunked answer; `head.body` must be empty.
  virtual void begin_stream(ServerReply head) = 0;
  /// Queues bytes. A client that does not read them lets the queue grow to its bound; then the
  /// connection is closed.
  virtual void write(std::string_view bytes) = 0;
  virtual void finish_stream() = 0;

  /// Called once, on the loop, when the client has gone before the answer was complete: it closed,
  /// reset, or stopped reading. Not called once the answer is complete or the writer destroyed.
  virtual void on_close(std::function<void()> callback) = 0;
};

/// Takes a request on the loop's thread and must not block.
using ServerHandler = std::function<void(ServerRequest, std::unique_ptr<ResponseWriter>)>;

/// Bounds of a listener; every one is enforced.
struct HttpServerLimits {
  std::size_t header_bytes = 32u << 10;             ///< over it: 431
  std::size_t body_bytes = 8u << 20;                ///< over it: 413
  std::size_t connections = 4096;                   ///< over it: 503 and close
  std::size_t queued_write_bytes = 4u << 20;        ///< of one connection
  std::chrono::milliseconds idle_timeout{75'000};   ///< for the next request, from its first wait
  std::chrono::milliseconds body_timeout{60'000};   ///< to receive a body
  std::chrono::milliseconds write_timeout{30'000};  ///< without a byte being taken
};

struct HttpServerOptions {
  std::string listen;  ///< host:port; port 0 = any free port
  HttpServerLimits limits;
  /// An answer that the server gives by itself (404, 405, 408, 413, 431, 400, 503). The path is
  /// empty when none was understood. May choose another status.
  std::function<ServerReply(int status, std::string_view message, std::string_view path)>
      error_reply;
};

struct HttpListener;

/// An HTTP/1.1 listener on an event loop (Boost.Beast behind it): keep-alive, pipelining, chunked
/// requests and answers, `Expect: 100-continue`. Sees a client close while its request waits.
/// A half-closed connection counts as closed.
class HttpServer {
 public:
  /// Listens at once; requests are served when the loop runs. kAlreadyExists when the port is in
  /// use, kInvalidArgument for a malformed address, with a message that says what to do.
  static absl::StatusOr<std::unique_ptr<HttpServer>> start(EventLoop& loop,
                                                           HttpServerOptions options);
  /// Closes everything. Call on the loop's thread, or when the loop does not run.
  ~HttpServer();

  /// Serves a path exactly, or, when it ends in "/*", all paths below it that have no route of
  /// their own. A path that has routes answers 405 to other methods. Call before the loop runs.
  void route(std::string method, std::string path, ServerHandler handler);

  /// host:port as actually bound.
  const std::string& address() const;

  /// Stops accepting, closes idle connections, and lets each other one end with its answer. Call on
  /// the loop's thread.
  void drain();

  std::size_t open_connections() const;

 private:
  explicit HttpServer(std::shared_ptr<HttpListener> listener);
  std::shared_ptr<HttpListener> listener_;
};

}  // namespace millrace::common::http
