#include "common/metrics/metrics.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, ExposesTextWithHelpTypeAndValue) {
  Registry registry;
  const Counter requests = registry.counter("millrace_test_requests_total", "Requests.");
  const Gauge running = registry.gauge("millrace_test_running", "Running now.");
  requests.add();
  requests.add(2);
  running.set(5);
  running.add(-2);
  const std::string text = registry.exposition();
  EXPECT_THAT(text, HasSubstr("# HELP millrace_test_requests_total Requests.\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE millrace_test_requests_total counter\n"));
  EXPECT_THAT(text, HasSubstr("millrace_test_requests_total 3\n"));
  EXPECT_THAT(text, HasSubstr("millrace_test_running 3\n"));
}

TEST(Metrics, LabelCombinationsExistAsZeroFromTheStart) {
  Registry registry;
  const MetricFamily<Counter> family =
      registry.counter("millrace_test_errors_total", "Errors.",
                       {{"role", {"prefill", "decode"}}, {"reason", {"full", "late"}}});
  family.with({"decode", "full"}).add();
  const std::string text = registry.exposition();
  EXPECT_THAT(text, HasSubstr("millrace_test_errors_total{reason=\"full\",role=\"decode\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("millrace_test_errors_total{reason=\"late\",role=\"prefill\"} 0\n"));
}

TEST(Metrics, HistogramCountsIntoItsBuckets) {
  Registry registry;
  const Histogram histogram =
      registry.histogram("millrace_test_seconds", "Time.", std::vector<double>{0.1, 1});
  histogram.observe(0.05);
  histogram.observe(0.5);
  histogram.observe(50);
  const std::string text = registry.exposition();
  EXPECT_THAT(text, HasSubstr("millrace_test_seconds_bucket{le=\"0.1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("millrace_test_seconds_bucket{le=\"1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("millrace_test_seconds_bucket{le=\"+Inf\"} 3\n"));
}

TEST(MetricsDeathTest, NamesAndLabelValuesOutsideTheRulesAreBugs) {
  Registry registry;
  const MetricFamily<Counter> family =
      registry.counter("millrace_test_total", "Help.", {{"role", {"prefill"}}});
  EXPECT_DEATH(family.with({"decode"}), "decode");
  EXPECT_DEATH(registry.counter("millrace_test_total", "Again."), "millrace_test_total");
  EXPECT_DEATH(registry.gauge("other_name", "Help."), "other_name");
  EXPECT_DEATH(registry.counter("millrace_count", "No suffix."), "millrace_count");
}

TEST(Metrics, PowerOfTwoBucketsReachTheLargest) {
  EXPECT_EQ(power_of_two_buckets(5), (std::vector<double>{1, 2, 4, 8}));
  EXPECT_EQ(power_of_two_buckets(8), (std::vector<double>{1, 2, 4, 8}));
}

std::string http_get(const std::string& address, const std::string& path) {
  const std::size_t colon = address.rfind(':');
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1))));
  ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &peer.sin_addr);
  std::string reply;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof peer) == 0) {
    const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
      char buffer[4096];
      ssize_t count = 0;
      while ((count = ::recv(fd, buffer, sizeof buffer, 0)) > 0) {
        reply.append(buffer, static_cast<std::size_t>(count));
      }
    }
  }
  ::close(fd);
  return reply;
}

TEST(MetricsServer, ServesTheRegistryOnAFreePort) {
  Registry registry;
  registry.counter("millrace_test_served_total", "Served.").add(7);
  const auto server = MetricsServer::start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT((*server)->address(), Not(HasSubstr(":0")));
  EXPECT_THAT(http_get((*server)->address(), "/metrics"),
              HasSubstr("millrace_test_served_total 7\n"));
}

TEST(MetricsServer, StopsAtOnce) {
  const Registry registry;
  auto server = MetricsServer::start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  http_get((*server)->address(), "/metrics");
  const auto begin = std::chrono::steady_clock::now();
  server->reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

TEST(MetricsServer, APortInUseIsAnErrorThatNamesIt) {
  Registry registry;
  const auto first = MetricsServer::start("127.0.0.1:0", registry);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = MetricsServer::start((*first)->address(), registry);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->address()));
}

}  // namespace
}  // namespace millrace
