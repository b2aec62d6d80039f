#include "common/http/http_client.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "common/str_cat.h"

namespace millrace::common::http {
namespace {

using namespace std::chrono_literals;

/// A server of raw bytes: accepts connections one after the other and hands each to `serve`.
class RawServer {
 public:
  explicit RawServer(std::function<void(int fd)> serve) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    socklen_t size = sizeof(address);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    url_ = str_cat("http://127.0.0.1:", ntohs(address.sin_port));
    thread_ = std::thread([this, serve = std::move(serve)] {
      while (true) {
        const int fd = accept(listener_, nullptr, nullptr);
        if (fd < 0) return;
        ++connections_;
        serve(fd);
        close(fd);
      }
    });
  }
  ~RawServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

  const std::string& url() const { return url_; }
  int connections() const { return connections_; }

 private:
  int listener_ = -1;
  std::string url_;
  std::atomic<int> connections_ = 0;
  std::thread thread_;
};

/// Reads one request: its head, and as many bytes of body as Content-Length says.
std::string read_request(int fd) {
  std::string text;
  char buffer[4096];
  std::size_t wanted = std::string::npos;
  while (text.size() < wanted) {
    const ssize_t count = read(fd, buffer, sizeof(buffer));
    if (count <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
    const std::size_t head = text.find("\r\n\r\n");
    if (head == std::string::npos) continue;
    const std::size_t length = text.find("Content-Length: ");
    wanted = head + 4 + (length == std::string::npos ? 0 : std::stoul(text.substr(length + 16)));
  }
  return text;
}

void send_text(int fd, std::string_view text) {
  EXPECT_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

TEST(HttpClient, GetReturnsStatusHeadersAndBody) {
  RawServer server([](int fd) {
    EXPECT_TRUE(read_request(fd).starts_with("GET /a?b=c HTTP/1.1\r\n"));
    send_text(fd, "HTTP/1.1 503 Busy\r\nRetry-After:  2\r\nContent-Length: 4\r\n\r\nwait");
  });
  HttpClient client;
  absl::StatusOr<HttpResponse> response = client.get(server.url() + "/a?b=c");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->status, 503);
  EXPECT_EQ(response->body, "wait");
  EXPECT_EQ(response->header("retry-after"), "2");
  EXPECT_EQ(response->header("absent"), "");
}

TEST(HttpClient, PostAndPutSendTheirBodyAndDeleteNone) {
  std::vector<std::string> seen;
  {
    RawServer server([&](int fd) {
      for (std::string text = read_request(fd); !text.empty(); text = read_request(fd)) {
        seen.push_back(text);
        send_text(fd, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
      }
    });
    HttpClient client;
    EXPECT_TRUE(client.post(server.url() + "/x", "{\"a\":1}").ok());
    EXPECT_TRUE(client.put(server.url() + "/x", "two").ok());
    EXPECT_TRUE(client.del(server.url() + "/x").ok());
    EXPECT_EQ(server.connections(), 1) << "the connection must be kept";
  }
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_TRUE(seen[0].starts_with("POST /x "));
  EXPECT_TRUE(seen[0].ends_with("\r\n\r\n{\"a\":1}"));
  EXPECT_NE(seen[0].find("Content-Type: application/json\r\n"), std::string::npos);
  EXPECT_EQ(seen[0].find("Expect"), std::string::npos);
  EXPECT_TRUE(seen[1].starts_with("PUT /x "));
  EXPECT_TRUE(seen[1].ends_with("\r\n\r\ntwo"));
  EXPECT_TRUE(seen[2].starts_with("DELETE /x "));
}

TEST(HttpClient, NobodyListeningIsUnavailable) {
  std::string url;
  {
    RawServer server([](int) {});
    url = server.url();
  }
  HttpClient client;
  EXPECT_EQ(client.get(url).status().code(), absl::StatusCode::kUnavailable);
}

TEST(HttpClient, AServerThatClosesEarlyIsUnavailable) {
  RawServer server([](int fd) {
    read_request(fd);
    send_text(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this");
  });
  HttpClient client;
  EXPECT_EQ(client.get(server.url()).status().code(), absl::StatusCode::kUnavailable);
}

TEST(HttpClient, ASilentServerIsADeadline) {
  RawServer server([](int fd) {
    read_request(fd);
    char byte;
    EXPECT_EQ(read(fd, &byte, 1), 0);  // until the client hangs up
  });
  HttpClient client({.timeout = 50ms});
  EXPECT_EQ(client.get(server.url()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(HttpClient, ABodyOverTheLimitIsRefused) {
  RawServer server([](int fd) {
    read_request(fd);
    send_text(fd, "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n01234567890");
  });
  HttpClient small({.max_body_bytes = 10});
  EXPECT_EQ(small.get(server.url()).status().code(), absl::StatusCode::kResourceExhausted);
  HttpClient enough({.max_body_bytes = 11});
  EXPECT_TRUE(enough.get(server.url()).ok());
}

TEST(HttpClient, AMalformedUrlAndAnUnknownMethodAreRefused) {
  HttpClient client;
  EXPECT_EQ(client.get("ftp://127.0.0.1/").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.get("127.0.0.1:80").status().code(), absl::StatusCode::kInvalidArgument);
  HttpRequest request;
  request.url = "http://127.0.0.1:1/";
  request.method = "PATCH";
  EXPECT_EQ(client.send(request).status().code(), absl::StatusCode::kInvalidArgument);
}

constexpr std::string_view kChunkedHead =
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n";

TEST(HttpClient, StreamHandsPiecesOverWhileTheyArrive) {
  std::atomic<int> received = 0;
  RawServer server([&](int fd) {
    read_request(fd);
    send_text(fd, kChunkedHead);
    for (int piece = 0; piece < 3; ++piece) {
      send_text(fd, "5\r\ndata\n\r\n");
      // The next piece leaves only after this one was seen: nothing may be held back.
      while (received.load() <= piece) std::this_thread::sleep_for(1ms);
    }
    send_text(fd, "0\r\n\r\n");
  });
  HttpClient client({.timeout = 20s});
  HttpRequest request;
  request.url = server.url();
  std::string all;
  absl::StatusOr<HttpResponse> response = client.stream(request, [&](std::string_view piece) {
    all += piece;
    received = static_cast<int>(all.size() / 5);
    return true;
  });
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(all, "data\ndata\ndata\n");
  EXPECT_EQ(response->body, "");
  EXPECT_EQ(response->header("content-type"), "text/event-stream");
}

TEST(HttpClient, AStreamWhoseReceiverStopsHangsUp) {
  std::atomic<bool> saw_hang_up = false;
  {
    RawServer server([&](int fd) {
      read_request(fd);
      send_text(fd, kChunkedHead);
      send_text(fd, "5\r\ndata\n\r\n");
      char byte;
      saw_hang_up = read(fd, &byte, 1) <= 0;
    });
    HttpClient client;
    HttpRequest request;
    request.url = server.url();
    EXPECT_EQ(client.stream(request, [](std::string_view) { return false; }).status().code(),
              absl::StatusCode::kCancelled);
  }
  EXPECT_TRUE(saw_hang_up);
}

TEST(HttpClient, AnErrorAnswerToAStreamIsCollected) {
  RawServer server([](int fd) {
    read_request(fd);
    send_text(fd, "HTTP/1.1 400 Bad\r\nContent-Length: 3\r\n\r\nbad");
  });
  HttpClient client;
  HttpRequest request;
  request.url = server.url();
  absl::StatusOr<HttpResponse> response =
      client.stream(request, [](std::string_view) { return false; });
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->status, 400);
  EXPECT_EQ(response->body, "bad");
}

}  // namespace
}  // namespace millrace::common::http
