#include "common/http/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "common/str_cat.h"

namespace millrace::common::http {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::StartsWith;

/// A client on a plain socket.
class Client {
 public:
  explicit Client(const std::string& address, int receive_buffer = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port =
        htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
  }

  /// Reads until the text received so far ends the way it should, or time is over.
  std::string read_until(const std::function<bool(const std::string&)>& is_enough,
                         std::chrono::milliseconds timeout = 5000ms) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    while (!is_enough(received_)) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          end - std::chrono::steady_clock::now());
      pollfd poll_fd{fd_, POLLIN, 0};
      if (left.count() <= 0 || ::poll(&poll_fd, 1, static_cast<int>(left.count())) <= 0) break;
      char buffer[65536];
      const ssize_t count = ::recv(fd_, buffer, sizeof buffer, 0);
      if (count <= 0) {
        is_closed_ = true;
        break;
      }
      received_.append(buffer, static_cast<std::size_t>(count));
    }
    return std::exchange(received_, {});
  }
  std::string read_until_text(const std::string& text) {
    return read_until([&](const std::string& got) { return got.find(text) != std::string::npos; });
  }
  std::string read_all(std::chrono::milliseconds timeout = 5000ms) {
    return read_until([](const std::string&) { return false; }, timeout);
  }

  bool is_closed() const { return is_closed_; }
  void half_close() { ::shutdown(fd_, SHUT_WR); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
  bool is_closed_ = false;
  std::string received_;
};

/// A server on a thread of its own, with routes that tests need.
class HttpServerTest : public testing::Test {
 protected:
  void start(const HttpServerLimits& limits = {}) {
    HttpServerOptions options;
    options.listen = "127.0.0.1:0";
    options.limits = limits;
    options.error_reply = [](int status, std::string_view message, std::string_view path) {
      ServerReply reply;
      reply.status = status;
      reply.body =
          str_cat("{\"error\":", status, ",\"path\":\"", path, "\",\"message\":\"", message, "\"}");
      return reply;
    };
    auto started = HttpServer::start(loop_, options);
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = std::move(*started);
    server_->route("GET", "/hello",
                   [](const ServerRequest& request, std::unique_ptr<ResponseWriter> w) {
                     ServerReply reply;
                     reply.body = "hello " + request.query;
                     reply.content_type = "text/plain";
                     w->respond(std::move(reply));
                   });
    server_->route("POST", "/echo", [](ServerRequest request, std::unique_ptr<ResponseWriter> w) {
      ServerReply reply;
      reply.body = std::move(request.body);
      w->respond(std::move(reply));
    });
    server_->route("GET", "/stream", [](const ServerRequest&, std::unique_ptr<ResponseWriter> w) {
      ServerReply head;
      head.content_type = "text/event-stream";
      w->begin_stream(std::move(head));
      w->write("data: 1\n\n");
      w->write("data: two\n\n");
      w->finish_stream();
    });
    for (const char* path : {"/items/*", "/items/special"}) {
      server_->route("GET", path,
                     [path](const ServerRequest& request, std::unique_ptr<ResponseWriter> w) {
                       ServerReply reply;
                       reply.body = str_cat("[", path, "] ", request.path);
                       w->respond(std::move(reply));
                     });
    }
    // Waits for the test to answer, and says when the client goes.
    server_->route("GET", "/wait", [this](const ServerRequest&, std::unique_ptr<ResponseWriter> w) {
      w->on_close([this] {
        waiting_ = nullptr;
        ++closed_;
      });
      waiting_ = std::move(w);
      ++started_;
    });
    // Starts a stream and drops the writer.
    server_->route("GET", "/broken", [](const ServerRequest&, std::unique_ptr<ResponseWriter> w) {
      w->begin_stream({});
      w->write("half");
    });
    thread_ = std::thread([this] { loop_.run(); });
  }

  void TearDown() override {
    loop_.post([this] {
      waiting_ = nullptr;
      server_ = nullptr;
      loop_.stop();
    });
    if (thread_.joinable()) thread_.join();
  }

  template <typename T>
  T on_loop(std::function<T()> function) {
    std::promise<T> promise;
    loop_.post([&] { promise.set_value(function()); });
    return promise.get_future().get();
  }

  static bool eventually(const std::function<bool()>& condition,
                         std::chrono::milliseconds timeout = 3000ms) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(2ms);
    }
    return true;
  }

  EventLoop loop_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<ResponseWriter> waiting_;
  std::atomic<int> started_ = 0;
  std::atomic<int> closed_ = 0;
  std::thread thread_;
};

TEST_F(HttpServerTest, AnswersAndKeepsTheConnectionOpen) {
  start();
  Client client(server_->address());
  for (int i = 0; i < 3; ++i) {
    client.send(str_cat("GET /hello?", i, " HTTP/1.1\r\nHost: x\r\n\r\n"));
    const std::string reply = client.read_until_text(str_cat("hello ", i));
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"));
    EXPECT_THAT(reply, HasSubstr("Content-Length: 7\r\n"));
    EXPECT_THAT(reply, HasSubstr("Connection: keep-alive\r\n"));
  }
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  Client client(server_->address());
  std::string requests;
  for (int i = 0; i < 50; ++i)
    requests += str_cat("GET /hello?", i, "; HTTP/1.1\r\nHost: x\r\n\r\n");
  client.send(requests);
  const std::string replies = client.read_until_text("hello 49;");
  std::size_t at = 0;
  for (int i = 0; i < 50; ++i) {
    at = replies.find(str_cat("hello ", i, ";"), at);
    ASSERT_NE(at, std::string::npos) << i;
  }
}

TEST_F(HttpServerTest, RequestsArriveWholeHoweverTheyAreCut) {
  start();
  Client client(server_->address());
  const std::string request =
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "4\r\nWiki\r\n6\r\npedia \r\nE\r\nin \r\n\r\nchunks.\r\n0\r\n\r\n";
  for (char c : request) {
    client.send(std::string(1, c));
    if (c == '\n') std::this_thread::sleep_for(1ms);
  }
  EXPECT_THAT(client.read_until_text("chunks."), HasSubstr("\r\n\r\nWikipedia in \r\n\r\nchunks."));
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
  std::this_thread::sleep_for(20ms);
  client.send("cde");
  EXPECT_THAT(client.read_until_text("abcde"), HasSubstr("\r\n\r\nabcde"));
}

TEST_F(HttpServerTest, StreamsInChunksAndGoesOn) {
  start();
  Client client(server_->address());
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string reply = client.read_until_text("0\r\n\r\n");
  EXPECT_THAT(reply, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(reply, HasSubstr("\r\n\r\n9\r\ndata: 1\n\n\r\nb\r\ndata: two\n\n\r\n0\r\n\r\n"));
  client.send("GET /hello?again HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.read_until_text("again"), HasSubstr("hello again"));
}

TEST_F(HttpServerTest, AnOldClientGetsAPlainStreamThatEndsWithTheConnection) {
  start();
  Client client(server_->address());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const std::string reply = client.read_all();
  EXPECT_TRUE(client.is_closed());
  EXPECT_THAT(reply, testing::EndsWith("\r\n\r\ndata: 1\n\ndata: two\n\n"));
}

TEST_F(HttpServerTest, ACutStreamIsNotMistakenForAWholeOne) {
  start();
  Client client(server_->address());
  client.send("GET /broken HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string reply = client.read_all();
  EXPECT_TRUE(client.is_closed());
  EXPECT_THAT(reply, testing::Not(HasSubstr("0\r\n\r\n")));
}

TEST_F(HttpServerTest, RefusesUnknownPathsAndMethodsInTheErrorForm) {
  start();
  Client client(server_->address());
  client.send("GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.read_until_text("}"), HasSubstr("{\"error\":404,\"path\":\"/nothing\""));
  client.send("DELETE /hello HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string reply = client.read_until_text("}");
  EXPECT_THAT(reply, HasSubstr("405 Method Not Allowed"));
  EXPECT_THAT(reply, HasSubstr("Allow: GET\r\n"));
  client.send("HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string head = client.read_until_text("\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("Content-Length: 6\r\n"));
  EXPECT_THAT(head, testing::EndsWith("\r\n\r\n"));
}

TEST_F(HttpServerTest, APathWithAStarServesWhatLiesBelowIt) {
  start();
  Client client(server_->address());
  const auto get = [&](const std::string& path) {
    client.send(str_cat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n"));
    return client.read_until([](const std::string& got) {
      return got.find("] /") != std::string::npos || got.find("}") != std::string::npos;
    });
  };
  EXPECT_THAT(get("/items/1"), HasSubstr("[/items/*] /items/1"));
  EXPECT_THAT(get("/items/1/parts"), HasSubstr("[/items/*] /items/1/parts"));
  EXPECT_THAT(get("/items/special"), HasSubstr("[/items/special] /items/special"));
  EXPECT_THAT(get("/items/"), HasSubstr("404"));
  EXPECT_THAT(get("/items"), HasSubstr("404"));
  client.send("POST /items/1 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
  EXPECT_THAT(client.read_until_text("}"), HasSubstr("405"));
}

TEST_F(HttpServerTest, RefusesBodiesOverTheLimit) {
  start({.body_bytes = 1000});
  Client stated(server_->address());
  stated.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n" +
              std::string(1001, 'a'));
  EXPECT_THAT(stated.read_all(), StartsWith("HTTP/1.1 413 "));
  EXPECT_TRUE(stated.is_closed());
  Client chunked(server_->address());
  chunked.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) chunked.send("64\r\n" + std::string(100, 'a') + "\r\n");
  EXPECT_THAT(chunked.read_all(), StartsWith("HTTP/1.1 413 "));
  Client fits(server_->address());
  fits.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" +
            std::string(1000, 'a'));
  EXPECT_THAT(fits.read_until_text("aaaa"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpServerTest, AClientInTheMiddleOfALargeBodySeesTheRefusal) {
  start({.body_bytes = 1000});
  Client client(server_->address());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n");
  client.send(std::string(8'000'000, 'a'));  // far more than the socket buffers hold
  EXPECT_THAT(client.read_all(), HasSubstr("413 Payload Too Large"));
}

TEST_F(HttpServerTest, RefusesHeadersOverTheLimitAndMalformedRequests) {
  start({.header_bytes = 2000});
  Client large(server_->address());
  large.send("GET /hello HTTP/1.1\r\nX: " + std::string(3000, 'a') + "\r\n\r\n");
  EXPECT_THAT(large.read_all(), StartsWith("HTTP/1.1 431 "));
  Client bad(server_->address());
  bad.send("this is not http\r\n\r\n");
  EXPECT_THAT(bad.read_all(), StartsWith("HTTP/1.1 400 "));
}

TEST_F(HttpServerTest, AnswersExpectContinue) {
  start();
  Client client(server_->address());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_THAT(client.read_until_text("\r\n\r\n"), StartsWith("HTTP/1.1 100 Continue"));
  client.send("abc");
  EXPECT_THAT(client.read_until_text("abc"), HasSubstr("200 OK"));
}

TEST_F(HttpServerTest, SeesAClientCloseWhileItsRequestWaits) {
  start();
  Client client(server_->address());
  client.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return started_ == 1; }));
  EXPECT_EQ(closed_, 0);
  client.close();
  EXPECT_TRUE(eventually([&] { return closed_ == 1; }));
  EXPECT_TRUE(eventually(
      [&] { return on_loop<std::size_t>([&] { return server_->open_connections(); }) == 0; }));
}

TEST_F(HttpServerTest, SeesAClientCloseBehindAPipelinedRequest) {
  start();
  Client client(server_->address());
  client.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\nGET /hello?2 HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return started_ == 1; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return closed_ == 1; }));
}

TEST_F(HttpServerTest, AWaitingRequestIsAnsweredLaterAndNextOnesFollow) {
  start();
  Client client(server_->address());
  client.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\nGET /hello?next HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return started_ == 1; }));
  loop_.post([this] {
    ServerReply reply;
    reply.body = "late";
    waiting_->respond(std::move(reply));
  });
  const std::string replies = client.read_until_text("hello next");
  EXPECT_THAT(replies, HasSubstr("late"));
  EXPECT_THAT(replies, HasSubstr("hello next"));
  EXPECT_EQ(closed_, 0);
}

TEST_F(HttpServerTest, AClientThatDoesNotReadIsClosedWhenItsQueueIsFull) {
  start({.queued_write_bytes = 100'000});
  Client client(server_->address(), 4096);
  client.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return started_ == 1; }));
  loop_.post([this] { waiting_->begin_stream({}); });
  // Nobody reads: the socket buffers fill (some megabytes at most), then the queue.
  for (int i = 0; i < 2000 && closed_ == 0; ++i) {
    loop_.post([this] {
      if (waiting_) waiting_->write(std::string(20'000, 'a'));
    });
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(eventually([&] { return closed_ == 1; }));
}

TEST_F(HttpServerTest, AClientThatStopsReadingIsClosedWhenTimeIsOver) {
  start({.queued_write_bytes = 64u << 20, .write_timeout = 200ms});
  Client client(server_->address(), 4096);
  client.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return started_ == 1; }));
  loop_.post([this] {
    waiting_->begin_stream({});
    waiting_->write(std::string(6u << 20, 'a'));  // more than the sockets take
  });
  EXPECT_TRUE(eventually([&] { return closed_ == 1; }, 10'000ms));
}

TEST_F(HttpServerTest, ASlowRequestRunsIntoTheTimeout) {
  start({.idle_timeout = 200ms, .body_timeout = 200ms});
  Client idle(server_->address());
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_TRUE(idle.is_closed());
  Client slow_head(server_->address());
  slow_head.send("GET /hello HT");
  EXPECT_THAT(slow_head.read_all(), StartsWith("HTTP/1.1 408 "));
  Client slow_body(server_->address());
  slow_body.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_THAT(slow_body.read_all(), StartsWith("HTTP/1.1 408 "));
}

TEST_F(HttpServerTest, ConnectionsOverTheLimitAreRefused) {
  start({.connections = 2});
  Client first(server_->address());
  Client second(server_->address());
  for (Client* client : {&first, &second}) {
    client->send("GET /hello?x HTTP/1.1\r\nHost: x\r\n\r\n");
    ASSERT_THAT(client->read_until_text("hello x"), HasSubstr("200 OK"));
  }
  Client third(server_->address());
  EXPECT_THAT(third.read_all(),
              testing::AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Retry-After: 1")));
  first.close();
  EXPECT_TRUE(eventually(
      [&] { return on_loop<std::size_t>([&] { return server_->open_connections(); }) < 2; }));
  Client fourth(server_->address());
  fourth.send("GET /hello?y HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(fourth.read_until_text("hello y"), HasSubstr("200 OK"));
}

TEST_F(HttpServerTest, DrainingEndsIdleConnectionsAndLetsAnswersFinish) {
  start();
  Client idle(server_->address());
  idle.send("GET /hello?x HTTP/1.1\r\nHost: x\r\n\r\n");
  idle.read_until_text("hello x");
  Client busy(server_->address());
  busy.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return started_ == 1; }));
  loop_.post([this] { server_->drain(); });
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_TRUE(idle.is_closed());
  loop_.post([this] {
    ServerReply reply;
    reply.body = "done";
    waiting_->respond(std::move(reply));
  });
  EXPECT_THAT(busy.read_all(), testing::AllOf(HasSubstr("Connection: close"), HasSubstr("done")));
  EXPECT_TRUE(busy.is_closed());
}

TEST_F(HttpServerTest, ManyClientsAtOnce) {
  start();
  constexpr int kClients = 8;
  std::vector<std::thread> threads;
  threads.reserve(kClients);
  std::atomic<int> good = 0;
  for (int t = 0; t < kClients; ++t) {
    threads.emplace_back([&, t] {
      Client client(server_->address());
      for (int i = 0; i < 100; ++i) {
        const std::string body = str_cat("body-", t, "-", i, ";");
        client.send(str_cat("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(),
                            "\r\n\r\n", body));
        if (client.read_until_text(body).find(body) != std::string::npos) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 800);
}

TEST(HttpServerStart, SaysWhatIsWrongWithTheAddress) {
  EventLoop loop;
  HttpServerOptions options;
  options.error_reply = [](int, std::string_view, std::string_view) { return ServerReply(); };
  for (const char* listen : {"", "8000", "127.0.0.1:", "127.0.0.1:70000", "nowhere.example:80"}) {
    options.listen = listen;
    EXPECT_EQ(HttpServer::start(loop, options).status().code(), absl::StatusCode::kInvalidArgument)
        << listen;
  }
  options.listen = "127.0.0.1:0";
  const auto first = HttpServer::start(loop, options);
  ASSERT_TRUE(first.ok());
  options.listen = (*first)->address();
  const auto second = HttpServer::start(loop, options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(message_of(second.status())), HasSubstr("choose another port"));
}

TEST(EventLoopTimer, RunsAfterItsDelayAndNotWhenDestroyed) {
  EventLoop loop;
  bool first = false;
  bool second = false;
  EventLoop::Timer kept = loop.after(10ms, [&] { first = true; });
  EventLoop::Timer dropped = loop.after(10ms, [&] { second = true; });
  dropped = EventLoop::Timer();
  EventLoop::Timer end = loop.after(50ms, [&] { loop.stop(); });
  loop.run();
  EXPECT_TRUE(first);
  EXPECT_FALSE(second);
}

}  // namespace
}  // namespace millrace::common::http
