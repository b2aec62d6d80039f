#include "common/http/http_server.h"

// Boost 1.74's awaitable.hpp uses std::exchange without including it.
#include <utility>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cctype>
#include <map>
#include <optional>
#include <set>

#include "common/check.h"
#include "common/http/http_exchange.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::common::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::redirect_error;
using asio::use_awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using Parser = beast::http::request_parser<beast::http::string_body>;

// How far ahead of its answers a client may send. Past it the connection is no longer read, so a
// close is seen only when the answer is written.
constexpr std::size_t kReadAheadBytes = 64u << 10;
// How long, and how much, a connection is still read after its last answer, so that a client in the
// middle of sending gets to see the answer instead of a reset.
constexpr std::chrono::seconds kLingerTime{2};
constexpr std::size_t kLingerBytes = 64u << 20;
constexpr std::chrono::milliseconds kAcceptRetry{100};

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

ServerRequest to_request(Parser& parser) {
  auto message = parser.release();
  ServerRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const std::size_t mark = target.find('?');
  request.path = target.substr(0, mark);
  if (mark != std::string::npos) request.query = target.substr(mark + 1);
  for (const auto& field : message) {
    request.headers.emplace_back(
        lower_case({field.name_string().data(), field.name_string().size()}),
        std::string(field.value()));
  }
  request.body = std::move(message.body());
  return request;
}

/// As far as the request was understood.
std::string path_of(const Parser& parser) {
  const std::string target(parser.get().target());
  return target.substr(0, target.find('?'));
}

}  // namespace

class HttpConnection;

std::string_view ServerRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

/// The listening socket, the routes and the bounds: what connections share.
struct HttpListener : std::enable_shared_from_this<HttpListener> {
  HttpListener(asio::io_context& io, HttpServerOptions server_options)
      : context(io), acceptor(io), accept_retry(io), options(std::move(server_options)) {}

  using Routes = std::map<std::string, std::map<std::string, ServerHandler>>;  // by path, method

  absl::Status listen();
  asio::awaitable<void> accept_loop(std::shared_ptr<HttpListener> self);
  void refuse(tcp::socket socket);
  Routes::const_iterator find_route(const std::string& path) const;
  void dispatch(ServerRequest request, std::unique_ptr<ResponseWriter> writer);
  void drain();
  void close_all();

  asio::io_context& context;
  tcp::acceptor acceptor;
  asio::steady_timer accept_retry;
  HttpServerOptions options;
  std::string address;
  Routes routes;
  std::set<HttpConnection*> connections;  // alive ones
  bool is_draining = false;
  bool is_closed = false;
};

/// One client connection. A coroutine reads requests and sends answers, one after another; a second
/// one reads ahead while an answer is outstanding, because that is how a close is seen.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(std::shared_ptr<HttpListener> server, tcp::socket socket)
      : server_(std::move(server)),
        socket_(std::move(socket)),
        timer_(server_->context),
        signal_(server_->context) {
    server_->connections.insert(this);
  }
  ~HttpConnection() { server_->connections.erase(this); }

  asio::awaitable<void> run(std::shared_ptr<HttpConnection> self);

  /// No request after the one in progress.
  void drain() {
    is_draining_ = true;
    if (exchange_) exchange_->forbid_keep_alive();
    if (is_idle_) close();
  }
  void close() {
    error_code ignored;
    socket_.close(ignored);
    signal_.cancel();
  }

 private:
  enum class Next { kRequest, kClose };
  /// Bounds what follows; when it is over, socket operations in progress are cancelled.
  void arm(std::chrono::milliseconds timeout);
  void disarm();
  asio::awaitable<std::optional<ServerRequest>> read_request();
  asio::awaitable<std::optional<ServerRequest>> read_body(Parser& parser);
  asio::awaitable<void> reject(error_code error, const Parser& parser);
  asio::awaitable<Next> answer(ServerRequest request);
  asio::awaitable<bool> send_answer();
  asio::awaitable<void> watch(std::shared_ptr<HttpConnection> self);
  asio::awaitable<void> wait_for_signal();
  asio::awaitable<bool> send(std::string bytes);
  asio::awaitable<void> linger();

  std::shared_ptr<HttpListener> server_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  asio::steady_timer signal_;               // never expires: cancel() wakes the main coroutine
  beast::flat_buffer buffer_;               // received, not parsed yet
  std::shared_ptr<HttpExchange> exchange_;  // the answer in progress
  bool is_http_1_0_ = false;
  bool keep_alive_ = true;
  bool is_idle_ = false;  // waits for the first byte of a request
  bool is_draining_ = false;
  bool is_timed_out_ = false;
  bool is_gone_ = false;  // the client closed, or the socket failed
  bool is_watching_ = false;
  bool is_signalled_ = false;
  std::uint64_t armed_ = 0;  // counts arm() and disarm(), so that a late expiry is ignored
};

void HttpConnection::arm(std::chrono::milliseconds timeout) {
  is_timed_out_ = false;
  timer_.expires_after(timeout);
  timer_.async_wait([self = weak_from_this(), mark = ++armed_](const error_code& error) {
    const auto connection = self.lock();
    if (error || !connection || connection->armed_ != mark) return;
    connection->is_timed_out_ = true;
    error_code ignored;
    connection->socket_.cancel(ignored);
  });
}

void HttpConnection::disarm() {
  ++armed_;
  timer_.cancel();
}

asio::awaitable<void> HttpConnection::run(std::shared_ptr<HttpConnection> /*keeps it alive*/) {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  while (!is_draining_ && !server_->is_closed) {
    std::optional<ServerRequest> request = co_await read_request();
    if (!request) break;
    const Next next = co_await answer(std::move(*request));
    if (next == Next::kClose) break;
  }
  if (!is_gone_) co_await linger();
  close();
}

asio::awaitable<std::optional<ServerRequest>> HttpConnection::read_request() {
  Parser parser;
  parser.header_limit(static_cast<std::uint32_t>(server_->options.limits.header_bytes));
  parser.body_limit(server_->options.limits.body_bytes);
  is_idle_ = buffer_.size() == 0;
  arm(server_->options.limits.idle_timeout);
  error_code error;
  if (is_idle_) {
    const std::size_t count = co_await socket_.async_read_some(
        buffer_.prepare(4096), redirect_error(use_awaitable, error));
    buffer_.commit(count);
    is_idle_ = false;
    if (error) {
      disarm();
      is_gone_ = true;
      co_return std::nullopt;
    }
  }
  co_await beast::http::async_read_header(socket_, buffer_, parser,
                                          redirect_error(use_awaitable, error));
  disarm();
  if (error) {
    co_await reject(error, parser);
    co_return std::nullopt;
  }
  std::optional<ServerRequest> request = co_await read_body(parser);
  co_return request;
}

asio::awaitable<std::optional<ServerRequest>> HttpConnection::read_body(Parser& parser) {
  is_http_1_0_ = parser.get().version() < 11;
  keep_alive_ = parser.get().keep_alive();
  const auto expect = parser.get()[beast::http::field::expect];
  if (!parser.is_done() && beast::iequals(expect, "100-continue") && buffer_.size() == 0) {
    const bool is_sent = co_await send("HTTP/1.1 100 Continue\r\n\r\n");
    if (!is_sent) co_return std::nullopt;
  }
  error_code error;
  if (!parser.is_done()) {
    arm(server_->options.limits.body_timeout);
    co_await beast::http::async_read(socket_, buffer_, parser,
                                     redirect_error(use_awaitable, error));
    disarm();
  }
  if (error) {
    co_await reject(error, parser);
    co_return std::nullopt;
  }
  co_return to_request(parser);
}

/// Says why a request could not be read, where someone may still listen.
asio::awaitable<void> HttpConnection::reject(error_code error, const Parser& parser) {
  const HttpServerOptions& options = server_->options;
  const std::string path = path_of(parser);
  ServerReply reply;
  if (error == beast::http::error::body_limit) {
    reply = options.error_reply(
        413, str_cat("the body is larger than ", options.limits.body_bytes, " bytes"), path);
  } else if (error == beast::http::error::header_limit) {
    reply = options.error_reply(
        431, str_cat("the headers are larger than ", options.limits.header_bytes, " bytes"), path);
  } else if (is_timed_out_) {
    reply = options.error_reply(408, "the request did not arrive in time", path);
  } else if (error.category() == make_error_code(beast::http::error::bad_method).category() &&
             error != beast::http::error::end_of_stream &&
             error != beast::http::error::partial_message) {
    reply = options.error_reply(400, str_cat("malformed HTTP request: ", error.message()), path);
  } else {
    is_gone_ = true;
    co_return;
  }
  std::string bytes =
      response_head(reply, str_cat("Content-Length: ", reply.body.size()), /*keep_alive=*/false);
  bytes += reply.body;
  co_await send(std::move(bytes));
}

asio::awaitable<HttpConnection::Next> HttpConnection::answer(ServerRequest request) {
  exchange_ = std::make_shared<HttpExchange>(
      HttpExchange::Options{.is_http_1_0 = is_http_1_0_,
                            .is_head_request = request.method == "HEAD",
                            .keep_alive = keep_alive_ && !is_draining_,
                            .queued_write_bytes = server_->options.limits.queued_write_bytes},
      [self = weak_from_this()] {
        const auto connection = self.lock();
        if (!connection) return;
        connection->is_signalled_ = true;
        connection->signal_.cancel();
        // A write that waits for a client that does not read would not look at the signal.
        const bool is_broken = connection->exchange_ && connection->exchange_->is_broken();
        if (is_broken) connection->close();
      });
  is_watching_ = true;
  asio::co_spawn(server_->context, watch(shared_from_this()), asio::detached);
  server_->dispatch(std::move(request), HttpExchange::make_writer(exchange_));
  const bool is_sent = co_await send_answer();
  // The reader must have let go of the socket before the next request is read.
  const std::shared_ptr<HttpExchange> exchange = std::exchange(exchange_, nullptr);
  while (is_watching_) {
    error_code ignored;
    socket_.cancel(ignored);
    co_await wait_for_signal();
  }
  if (!is_sent) {
    is_gone_ = true;
    exchange->report_close();
    co_return Next::kClose;
  }
  co_return exchange->keeps_alive() && !is_gone_ ? Next::kRequest : Next::kClose;
}

/// True when the whole answer went out.
asio::awaitable<bool> HttpConnection::send_answer() {
  while (true) {
    if (is_gone_ || exchange_->is_broken()) co_return false;
    if (exchange_->has_outgoing()) {
      const bool is_sent = co_await send(exchange_->take_outgoing());
      if (!is_sent) co_return false;
    } else if (exchange_->is_complete()) {
      co_return true;
    } else {
      co_await wait_for_signal();
    }
  }
}

/// Reads ahead while an answer is outstanding, to see the client close.
asio::awaitable<void> HttpConnection::watch(std::shared_ptr<HttpConnection> /*keeps it alive*/) {
  while (exchange_ != nullptr && buffer_.size() < kReadAheadBytes) {
    error_code error;
    const std::size_t count = co_await socket_.async_read_some(
        buffer_.prepare(4096), redirect_error(use_awaitable, error));
    buffer_.commit(count);
    // A write that ran out of time cancels this read too; send() reports that itself.
    if (error == asio::error::operation_aborted) break;
    if (error) {
      is_gone_ = true;
      if (exchange_ != nullptr) exchange_->report_close();
      error_code ignored;
      socket_.close(ignored);  // ends a write in progress
      break;
    }
  }
  is_watching_ = false;
  is_signalled_ = true;
  signal_.cancel();
}

asio::awaitable<void> HttpConnection::wait_for_signal() {
  if (!is_signalled_) {
    error_code ignored;
    signal_.expires_at(std::chrono::steady_clock::time_point::max());
    co_await signal_.async_wait(redirect_error(use_awaitable, ignored));
  }
  is_signalled_ = false;
}

asio::awaitable<bool> HttpConnection::send(std::string bytes) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    error_code error;
    arm(server_->options.limits.write_timeout);
    sent +=
        co_await socket_.async_write_some(asio::buffer(bytes.data() + sent, bytes.size() - sent),
                                          redirect_error(use_awaitable, error));
    disarm();
    if (error) {
      is_gone_ = true;
      co_return false;
    }
  }
  co_return true;
}

asio::awaitable<void> HttpConnection::linger() {
  error_code error;
  socket_.shutdown(tcp::socket::shutdown_send, error);
  arm(kLingerTime);
  std::size_t total = 0;
  while (!error && total < kLingerBytes) {
    buffer_.clear();
    total += co_await socket_.async_read_some(buffer_.prepare(64u << 10),
                                              redirect_error(use_awaitable, error));
  }
  disarm();
}

namespace {

absl::StatusOr<tcp::endpoint> parse_endpoint(const std::string& listen) {
  absl::Status wrong = absl::InvalidArgumentError(
      str_cat("\"", listen, "\" is no listen address; write host:port with a numeric host, for ",
              "example 127.0.0.1:8000 (port 0 takes any free one)"));
  const std::size_t colon = listen.rfind(':');
  if (colon == std::string::npos) return wrong;
  std::string host = listen.substr(0, colon);
  if (host == "localhost") host = "127.0.0.1";
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  error_code error;
  const auto address = asio::ip::make_address(host, error);
  const std::string digits = listen.substr(colon + 1);
  if (error || digits.empty() || digits.size() > 5 ||
      !std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }) ||
      std::stoi(digits) > 65535) {
    return wrong;
  }
  return tcp::endpoint(address, static_cast<std::uint16_t>(std::stoi(digits)));
}

std::string show(const tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return endpoint.address().is_v6() ? str_cat("[", host, "]:", endpoint.port())
                                    : str_cat(host, ":", endpoint.port());
}

}  // namespace

absl::Status HttpListener::listen() {
  ASSIGN_OR_RETURN(const tcp::endpoint endpoint, parse_endpoint(options.listen));
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (error == asio::error::address_in_use) {
    return absl::AlreadyExistsError(str_cat("port in use: another process listens on ",
                                            options.listen, "; stop it or choose another port"));
  }
  if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
  if (error) {
    return absl::UnavailableError(
        str_cat("cannot listen on ", options.listen, ": ", error.message()));
  }
  address = show(acceptor.local_endpoint(error));
  return absl::OkStatus();
}

asio::awaitable<void> HttpListener::accept_loop(std::shared_ptr<HttpListener> self) {
  while (acceptor.is_open()) {
    error_code error;
    tcp::socket socket = co_await acceptor.async_accept(redirect_error(use_awaitable, error));
    if (!acceptor.is_open()) break;
    if (error) {
      // Out of descriptors, or the client left already: neither ends the listener.
      accept_retry.expires_after(kAcceptRetry);
      co_await accept_retry.async_wait(redirect_error(use_awaitable, error));
    } else if (connections.size() >= options.limits.connections) {
      refuse(std::move(socket));
    } else {
      auto connection = std::make_shared<HttpConnection>(self, std::move(socket));
      asio::co_spawn(context, connection->run(connection), asio::detached);
    }
  }
}

/// Tells a client that there is no room, as far as that goes without waiting for it.
void HttpListener::refuse(tcp::socket socket) {
  ServerReply reply = options.error_reply(503, "too many connections", "");
  reply.headers.emplace_back("Retry-After", "1");
  std::string bytes =
      response_head(reply, str_cat("Content-Length: ", reply.body.size()), /*keep_alive=*/false);
  bytes += reply.body;
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(bytes), ignored);
  socket.shutdown(tcp::socket::shutdown_send, ignored);
}

/// The exact path, or else the longest one that ends in "/*" and that it lies below.
HttpListener::Routes::const_iterator HttpListener::find_route(const std::string& path) const {
  const auto exact = routes.find(path);
  if (exact != routes.end()) return exact;
  for (std::size_t at = path.rfind('/'); at != std::string::npos && at > 0;
       at = path.rfind('/', at - 1)) {
    const auto below = routes.find(path.substr(0, at) + "/*");
    if (below != routes.end() && at + 1 < path.size()) return below;
  }
  return routes.end();
}

void HttpListener::dispatch(ServerRequest request, std::unique_ptr<ResponseWriter> writer) {
  const auto path = find_route(request.path);
  if (path == routes.end()) {
    writer->respond(
        options.error_reply(404, str_cat("no such path: ", request.path), request.path));
    return;
  }
  const std::string& method = request.method == "HEAD" ? "GET" : request.method;
  const auto handler = path->second.find(method);
  if (handler == path->second.end()) {
    ServerReply reply = options.error_reply(
        405, str_cat(request.path, " does not take ", request.method), request.path);
    std::string allowed;
    for (const auto& [name, unused] : path->second) {
      allowed += (allowed.empty() ? "" : ", ") + name;
    }
    reply.headers.emplace_back("Allow", allowed);
    writer->respond(std::move(reply));
    return;
  }
  handler->second(std::move(request), std::move(writer));
}

void HttpListener::drain() {
  is_draining = true;
  error_code ignored;
  acceptor.close(ignored);
  // A copy: closing may end a connection.
  const std::set<HttpConnection*> open = connections;
  for (HttpConnection* connection : open) connection->drain();
}

void HttpListener::close_all() {
  is_closed = true;
  drain();
  const std::set<HttpConnection*> open = connections;
  for (HttpConnection* connection : open) connection->close();
  routes.clear();
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::start(EventLoop& loop,
                                                              HttpServerOptions options) {
  CHECK(options.error_reply != nullptr);
  auto listener = std::make_shared<HttpListener>(loop.context(), std::move(options));
  RETURN_IF_ERROR(listener->listen());
  asio::co_spawn(listener->context, listener->accept_loop(listener), asio::detached);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(listener)));
}

HttpServer::HttpServer(std::shared_ptr<HttpListener> listener) : listener_(std::move(listener)) {}
HttpServer::~HttpServer() { listener_->close_all(); }

void HttpServer::route(std::string method, std::string path, ServerHandler handler) {
  listener_->routes[std::move(path)][std::move(method)] = std::move(handler);
}

const std::string& HttpServer::address() const { return listener_->address; }
void HttpServer::drain() { listener_->drain(); }
std::size_t HttpServer::open_connections() const { return listener_->connections.size(); }

}  // namespace millrace::common::http
