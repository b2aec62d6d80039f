// Two millrace-kvfetch processes, as of two machines, that hand windows to each other.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "common/http/http_client.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/process/child_process.h"
#include "common/process/shared_region.h"
#include "common/str_cat.h"
#include "storage/fetch/fetch_client.h"

namespace millrace::storage::fetch {
namespace {

using std::chrono::milliseconds;
using swa::WindowMiss;
using ::testing::HasSubstr;

constexpr std::uint32_t kWindowBytes = 1'500'000;
constexpr milliseconds kLong{10000};

BlockKey key_of(unsigned number) {
  BlockKey key;
  key.bytes[0] = static_cast<std::uint8_t>(number);
  key.bytes[31] = 2;
  return key;
}

std::vector<std::byte> window_of(unsigned number) {
  std::mt19937_64 random(number);
  std::vector<std::byte> window(kWindowBytes);
  for (std::size_t i = 0; i < window.size(); i += 16) window[i] = static_cast<std::byte>(random());
  return window;
}

/// gRPC is loaded as long as a process has a channel, and takes up to ten seconds to end the
/// attempts to reach a fetcher that is dead. So here it never ends.
void keep_grpc_loaded() {
  static const auto* const channel = new std::shared_ptr<grpc::Channel>(
      grpc::CreateChannel("unix:/nobody", grpc::InsecureChannelCredentials()));
  EXPECT_NE(*channel, nullptr);
}

/// A kvfetch under a host id of its own. There are no storage nodes: blocks are not asked for.
class Machine {
 public:
  explicit Machine(const std::string& which)
      : name_(str_cat("window-process-", ::getpid(), "-", which)) {
    keep_grpc_loaded();
  }
  ~Machine() {
    client_.reset();
    child_.reset();
    remove_shared_regions(str_cat("millrace-", name_, "++kvfetch"));
    for (const char* what : {"sock", "map", "ready", "log"}) std::filesystem::remove(path(what));
  }

  void start() {
    client_.reset();
    std::filesystem::remove(path("ready"));
    auto child = ChildProcess::start({.program = MILLRACE_KVFETCH_PROGRAM,
                                      .arguments = arguments(),
                                      .output_path = path("log")});
    ASSERT_TRUE(child.ok()) << child.status();
    child_.emplace(*std::move(child));
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    while (!std::filesystem::exists(path("ready"))) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << log();
      std::this_thread::sleep_for(milliseconds(2));
    }
    auto client =
        FetchClient::connect({.address = str_cat("unix:", path("sock")), .client_id = "test"});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  void kill() {
    child_->send(SIGKILL);
    ASSERT_TRUE(child_->wait_for(kLong).has_value());
  }
  void stop() {
    child_->send(SIGTERM);
    const auto status = child_->wait_for(kLong);
    ASSERT_TRUE(status.has_value());
    EXPECT_TRUE(status->is_success()) << describe(*status) << log();
  }
  std::string log() const { return read_file(path("log")).value_or("no log"); }
  std::string ready(std::string_view member) const {
    const auto json = parse_json(*read_file(path("ready")));
    EXPECT_TRUE(json.ok());
    return std::string(*json_string(*json, member));
  }
  const std::string& name() const { return name_; }

  std::optional<swa::WindowLocation> put(unsigned number) {
    EXPECT_TRUE(client_->put_window(1, key_of(number), window_of(number)).ok());
    const SessionEvent event = next();
    const auto* stored = std::get_if<WindowStored>(&event);
    EXPECT_NE(stored, nullptr);
    return stored == nullptr ? std::nullopt : stored->at;
  }
  /// nullopt: it came, and is right.
  std::optional<WindowMiss> get(const swa::WindowLocation& from, unsigned number) {
    EXPECT_TRUE(client_->get_window(3, from, key_of(number), milliseconds(5000)).ok());
    const SessionEvent event = next();
    if (const auto* missed = std::get_if<WindowMissed>(&event)) return missed->reason;
    const auto* ready = std::get_if<WindowReady>(&event);
    EXPECT_NE(ready, nullptr);
    std::vector<std::byte> out(kWindowBytes);
    if (ready != nullptr) {
      EXPECT_TRUE(client_->copy_window_out(ready->ref, key_of(number), out).ok());
    }
    EXPECT_EQ(out, window_of(number));
    EXPECT_TRUE(client_->release_window(3).ok());
    return std::nullopt;
  }
  bool is_connected() const { return client_->health().ok(); }

 private:
  std::vector<std::string> arguments() const {
    return {"--listen",
            str_cat("unix:", path("sock")),
            "--host-id",
            name_,
            "--map",
            path("map"),
            "--block-bytes",
            "4096",
            "--arena-mib",
            "1",
            "--write-arena-mib",
            "1",
            "--window-bytes",
            str_cat(kWindowBytes),
            "--window-pool-bytes",
            "6100000",
            "--ready-file",
            path("ready"),
            "--log-level",
            "warn"};
  }
  SessionEvent next() {
    const auto events = client_->poll(kLong);
    EXPECT_EQ(events.size(), 1u) << client_->health() << log();
    return events.empty() ? SessionEvent{} : events[0];
  }
  std::string path(const std::string& what) const {
    return str_cat(::testing::TempDir(), name_, ".", what);
  }

  const std::string name_;
  std::optional<ChildProcess> child_;
  std::unique_ptr<FetchClient> client_;
};

TEST(WindowProcess, AWindowGoesFromMachineToMachineUntilItsOwnerDies) {
  Machine owner("owner");
  Machine reader("reader");
  owner.start();
  reader.start();
  const auto at = owner.put(1);
  ASSERT_TRUE(at.has_value());
  EXPECT_EQ(at->host_id, owner.name());
  EXPECT_THAT(at->address, HasSubstr("127.0.0.1:"));
  EXPECT_EQ(reader.get(*at, 1), std::nullopt);
  EXPECT_EQ(owner.get(*at, 1), std::nullopt);

  // Its slot is used anew: four windows fit.
  const auto old = owner.put(2);
  for (unsigned number = 3; number <= 6; ++number) ASSERT_TRUE(owner.put(number).has_value());
  EXPECT_EQ(reader.get(*old, 2), WindowMiss::kRecycled);

  const auto last = owner.put(7);
  owner.kill();
  EXPECT_EQ(reader.get(*last, 7), WindowMiss::kUnreachable);
  owner.start();  // another pool, at another port
  swa::WindowLocation moved = *last;
  moved.address = owner.put(8)->address;
  EXPECT_EQ(reader.get(moved, 7), WindowMiss::kOtherOwner);
  EXPECT_EQ(owner.get(*last, 7), WindowMiss::kOtherOwner);
  EXPECT_EQ(reader.get(*owner.put(7), 7), std::nullopt);
  owner.stop();
  reader.stop();
}

TEST(WindowProcess, AnEngineNoticesThatItsFetcherDiedAndGoesOnWithTheNextOne) {
  Machine machine("dying");
  for (unsigned kill = 0; kill < 3; ++kill) {
    machine.start();
    const auto at = machine.put(kill);
    ASSERT_TRUE(at.has_value());
    EXPECT_EQ(machine.get(*at, kill), std::nullopt);
    machine.kill();
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    while (machine.is_connected() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    EXPECT_FALSE(machine.is_connected());
  }
}

TEST(WindowProcess, ShowsItsMetrics) {
  Machine machine("metrics");
  machine.start();
  const auto at = machine.put(1);
  ASSERT_TRUE(at.has_value());
  EXPECT_EQ(machine.get(*at, 1), std::nullopt);
  common::http::HttpClient http;
  std::string body;
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  while (body.find("millrace_swa_hits_total{source=\"local\"} 1") == std::string::npos) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << body;
    const auto response =
        http.get(str_cat("http://", machine.ready("metrics_address"), "/metrics"));
    ASSERT_TRUE(response.ok()) << response.status();
    body = response->body;
  }
  EXPECT_THAT(body, HasSubstr("millrace_swa_windows_total{outcome=\"stored\"} 1"));
  EXPECT_THAT(body, HasSubstr("millrace_swa_peer_requests_total{outcome=\"served\"} 0"));
}

}  // namespace
}  // namespace millrace::storage::fetch
