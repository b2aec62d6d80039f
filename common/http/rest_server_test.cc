#include "common/http/rest_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "common/http/http_client.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::common::http {
namespace {

using namespace std::chrono_literals;

std::vector<RestRoute> echo_routes() {
  std::vector<RestRoute> routes;
  routes.push_back({"GET", "/items/{id}/parts/{part}", [](const RestRequest& request) {
                      return RestResponse{200,
                                          str_cat(request.path_parameters.at("id"), "|",
                                                  request.path_parameters.at("part")),
                                          "text/plain"};
                    }});
  routes.push_back({"GET", "/query", [](const RestRequest& request) {
                      std::string text;
                      for (const auto& [key, value] : request.query) {
                        text += str_cat(key, "=", value, ";");
                      }
                      return RestResponse{200, text, "text/plain"};
                    }});
  routes.push_back({"POST", "/body", [](const RestRequest& request) {
                      return RestResponse{201, request.body, "text/plain"};
                    }});
  return routes;
}

std::unique_ptr<RestServer> start_echo(std::size_t max_body_bytes = 1000) {
  absl::StatusOr<std::unique_ptr<RestServer>> server =
      RestServer::start({.listen = "127.0.0.1:0", .max_body_bytes = max_body_bytes}, echo_routes());
  EXPECT_TRUE(server.ok()) << server.status();
  return std::move(*server);
}

std::string url_of(const RestServer& server, std::string_view path) {
  return str_cat("http://", server.address(), path);
}

/// Whether the head of an answer is there and all of the body that it announces.
bool is_whole(std::string_view answer) {
  const std::size_t head = answer.find("\r\n\r\n");
  const std::size_t field = answer.find("Content-Length: ");
  if (head == answer.npos || field >= head) return false;
  return answer.size() - head - 4 >= std::stoul(std::string(answer.substr(field + 16, 9)));
}

/// Sends bytes as they are, then the end of the stream, and returns the answer, or what came of it
/// until the server closed (or, as a failure to be seen, was silent for a minute). A server that
/// refused a head whose body it cannot measure has answered and leaves the closing to its client.
std::string exchange_raw(const RestServer& server, std::string_view bytes,
                         std::string_view more = {}) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string port = server.address().substr(server.address().find(':') + 1);
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port)));
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const timeval timeout{.tv_sec = 60, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  for (std::size_t sent = 0; sent < more.size();) {
    const ssize_t count = send(fd, more.data() + sent, more.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) break;
    sent += static_cast<std::size_t>(count);
  }
  shutdown(fd, SHUT_WR);
  std::string answer;
  char buffer[4096];
  for (ssize_t count = 0; !is_whole(answer) && (count = read(fd, buffer, sizeof(buffer))) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(count));
  }
  close(fd);
  return answer;
}

TEST(RestServer, RoutesByPathAndHandsDecodedParametersOver) {
  auto server = start_echo();
  HttpClient client;
  absl::StatusOr<HttpResponse> response = client.get(url_of(*server, "/items/a%2Fb%20c/parts/7"));
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body, "a/b c|7");
  EXPECT_EQ(response->header("content-type"), "text/plain");
  response = client.get(url_of(*server, "/query?after=12&name=x%26y"));
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->body, "after=12;name=x&y;");
}

TEST(RestServer, UnknownPathIs404AndKnownPathWithAnotherMethod405) {
  auto server = start_echo();
  HttpClient client;
  for (const char* path : {"/", "/items", "/items/a/parts", "/items/a/parts/7/8", "/bodyx"}) {
    absl::StatusOr<HttpResponse> response = client.get(url_of(*server, path));
    ASSERT_TRUE(response.ok());
    EXPECT_EQ(response->status, 404) << path;
    EXPECT_TRUE(parse_json(response->body).ok()) << response->body;
  }
  absl::StatusOr<HttpResponse> response = client.get(url_of(*server, "/body"));
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->status, 405);
  EXPECT_NE(response->body.find("POST"), std::string::npos);
}

TEST(RestServer, BodiesArriveUpToTheLimitAndNotBeyond) {
  auto server = start_echo(1000);
  HttpClient client;
  absl::StatusOr<HttpResponse> response =
      client.post(url_of(*server, "/body"), std::string(1000, 'x'));
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->status, 201);
  EXPECT_EQ(response->body, std::string(1000, 'x'));
  response = client.post(url_of(*server, "/body"), std::string(1001, 'x'));
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->status, 413);
  response = client.post(url_of(*server, "/body"), "after it");
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->body, "after it");
}

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total_pages = 0;
  std::size_t resident_pages = 0;
  file >> total_pages >> resident_pages;
  return resident_pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST(RestServer, ARefusedBodyIsNotKeptInMemory) {
  auto server = start_echo();
  const std::size_t before = resident_bytes();
  const std::string body(std::size_t{100} << 20, 'x');
  const std::size_t with_body = resident_bytes();
  ASSERT_GT(with_body - before, std::size_t{90} << 20);  // the measure works
  const std::string head = str_cat("POST /body HTTP/1.1\r\nHost: x\r\nConnection: close\r\n",
                                   "Content-Length: ", body.size(), "\r\n\r\n");
  const std::string answer = exchange_raw(*server, head, body);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 413")) << answer;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // A sanitizer keeps freed memory, so that the measure says nothing there.
  EXPECT_LT(resident_bytes(), with_body + (std::size_t{30} << 20));
#endif
}

TEST(RestServer, ABodyOfUnstatedLengthIs411) {
  auto server = start_echo();
  const std::string answer =
      exchange_raw(*server,
                   "POST /body HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                   "3\r\nabc\r\n0\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 411")) << answer;
}

TEST(RestServer, SurvivesBytesThatAreNoHttp) {
  auto server = start_echo();
  for (std::string_view bytes :
       {"\r\n\r\n", "GET\r\n\r\n", "\xff\xfe\x00 \r\n\r\n", "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n"}) {
    const std::string answer = exchange_raw(*server, bytes);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 4")) << answer;
  }
  HttpClient client;
  absl::StatusOr<HttpResponse> response = client.post(url_of(*server, "/body"), "still here");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->body, "still here");
}

TEST(RestServer, APortInUseIsSaidSo) {
  auto server = start_echo();
  absl::StatusOr<std::unique_ptr<RestServer>> second =
      RestServer::start({.listen = server->address()}, echo_routes());
  ASSERT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find("in use"), absl::string_view::npos) << second.status();
}

TEST(RestServer, AMalformedListenAddressIsRefused) {
  for (const char* listen : {"", ":80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000",
                             "no.such.host.invalid:0", "203.0.113.1:0"}) {
    EXPECT_EQ(RestServer::start({.listen = listen}, {}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << listen;
  }
}

TEST(RestServer, StopWaitsForARunningHandler) {
  std::atomic<bool> has_begun = false;
  std::atomic<bool> has_ended = false;
  std::vector<RestRoute> routes;
  routes.push_back({"GET", "/slow", [&](const RestRequest&) {
                      has_begun = true;
                      std::this_thread::sleep_for(100ms);
                      has_ended = true;
                      return RestResponse{};
                    }});
  auto server = RestServer::start({.listen = "127.0.0.1:0"}, std::move(routes));
  ASSERT_TRUE(server.ok()) << server.status();
  std::thread caller([url = url_of(**server, "/slow")] {
    HttpClient client;
    static_cast<void>(client.get(url));  // the answer may be lost to the stop
  });
  while (!has_begun) std::this_thread::sleep_for(1ms);
  (*server)->stop();
  EXPECT_TRUE(has_ended);
  caller.join();
}

TEST(RestServer, ManyClientsAtOnceAreAllAnswered) {
  auto server = start_echo();
  std::atomic<int> answers = 0;
  constexpr int kClients = 16;
  std::vector<std::thread> clients;
  clients.reserve(kClients);
  for (int index = 0; index < kClients; ++index) {
    clients.emplace_back([&, index] {
      HttpClient client;
      for (int call = 0; call < 50; ++call) {
        const std::string body = str_cat(index, "/", call);
        absl::StatusOr<HttpResponse> response = client.post(url_of(*server, "/body"), body);
        if (response.ok() && response->body == body) ++answers;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(answers, 16 * 50);
}

}  // namespace
}  // namespace millrace::common::http
