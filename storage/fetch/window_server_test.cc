// Sliding windows between engines and the fetcher of their machine.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "common/str_cat.h"
#include "storage/fetch/fetch_client.h"
#include "storage/fetch/fetch_server.h"
#include "storage/fetch/memory_block_io.h"

namespace millrace::storage::fetch {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr std::uint32_t kBlockBytes = 4096;
constexpr std::uint32_t kWindowBytes = 1'500'000;
constexpr milliseconds kLong{10000};

BlockKey key_of(unsigned number) {
  BlockKey key;
  key.bytes[0] = static_cast<std::uint8_t>(number);
  key.bytes[31] = 1;
  return key;
}

std::vector<std::byte> window_of(unsigned number, std::size_t bytes = kWindowBytes) {
  std::mt19937_64 random(number);
  std::vector<std::byte> window(bytes);
  for (std::size_t i = 0; i < bytes; i += 64) window[i] = static_cast<std::byte>(random());
  return window;
}

class WindowServerTest : public ::testing::Test {
 protected:
  WindowServerTest() {
    const std::string name = str_cat("window-server-test-", ::getpid());
    config_.host_id = name;
    config_.listen_address = str_cat("unix:", ::testing::TempDir(), name, ".sock");
    config_.incarnation = 11;
    config_.block_bytes = kBlockBytes;
    config_.read_arena_bytes = 65536;
    config_.write_arena_bytes = 65536;
    config_.windows.window_bytes = kWindowBytes;
    config_.windows.pool_bytes = std::size_t{4} * 1'503'232 + 8192;
  }
  ~WindowServerTest() override {
    server_.reset();
    std::filesystem::remove(str_cat("/dev/shm/millrace-", config_.host_id, "++kvfetch.lock"));
  }

  absl::Status try_start() {
    server_.reset();
    registry_.emplace();
    auto server =
        FetchServer::start(config_, std::make_unique<MemoryBlockIo>(blocks_), *registry_, log_);
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    return absl::OkStatus();
  }
  void start() {
    const absl::Status status = try_start();
    ASSERT_TRUE(status.ok()) << status;
  }
  std::unique_ptr<FetchClient> connect(std::size_t max_waiting_window_bytes = 64 << 20) {
    auto client = FetchClient::connect({.address = config_.listen_address,
                                        .client_id = "test",
                                        .max_waiting_window_bytes = max_waiting_window_bytes});
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  static SessionEvent next_event(FetchClient& client) {
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    while (std::chrono::steady_clock::now() < deadline && client.health().ok()) {
      const auto events = client.poll(milliseconds(100));
      EXPECT_LE(events.size(), 1u);
      if (!events.empty()) return events[0];
    }
    ADD_FAILURE() << "nothing came: " << client.health();
    return {};
  }
  template <typename Event>
  static Event expect(FetchClient& client) {
    const SessionEvent event = next_event(client);
    const auto* found = std::get_if<Event>(&event);
    EXPECT_NE(found, nullptr) << "another event came: " << event.index();
    return found == nullptr ? Event{} : *found;
  }
  static swa::WindowLocation put(FetchClient& client, unsigned number) {
    EXPECT_TRUE(client.put_window(1, key_of(number), window_of(number)).ok());
    const auto stored = expect<WindowStored>(client);
    EXPECT_TRUE(stored.at.has_value());
    return stored.at.value_or(swa::WindowLocation{});
  }
  bool has_metric(std::string_view line) const {
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    while (registry_->exposition().find(line) == std::string::npos) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(20));
    }
    return true;
  }

  const Logger log_ = Logger::to_sink("kvfetch", LogLevel::kOff, [](std::string_view) {});
  FetchServerConfig config_;
  MemoryBlocks blocks_;
  std::optional<Registry> registry_;
  std::unique_ptr<FetchServer> server_;
};

TEST_F(WindowServerTest, AWindowComesThroughToAnotherEngine) {
  start();
  const auto writer = connect();
  EXPECT_EQ(writer->window_bytes(), kWindowBytes);
  const swa::WindowLocation at = put(*writer, 1);
  EXPECT_EQ(at.host_id, config_.host_id);
  EXPECT_EQ(at.incarnation, config_.incarnation);
  EXPECT_EQ(at.bytes, kWindowBytes);
  const auto reader = connect();
  ASSERT_TRUE(reader->get_window(9, at, key_of(1), kLong).ok());
  const auto ready = expect<WindowReady>(*reader);
  EXPECT_EQ(ready.request_id, 9u);
  std::vector<std::byte> out(kWindowBytes);
  ASSERT_TRUE(reader->copy_window_out(ready.ref, key_of(1), out).ok());
  EXPECT_EQ(out, window_of(1));
  EXPECT_EQ(reader->copy_window_out(ready.ref, key_of(2), out).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(has_metric("millrace_swa_pool_slots{state=\"leased\"} 1"));
  ASSERT_TRUE(reader->release_window(9).ok());
  EXPECT_TRUE(has_metric("millrace_swa_pool_slots{state=\"used\"} 1"));
  EXPECT_TRUE(has_metric("millrace_swa_hits_total{source=\"local\"} 1"));
  EXPECT_TRUE(has_metric("millrace_swa_windows_total{outcome=\"stored\"} 1"));
}

TEST_F(WindowServerTest, AWindowThatMadeRoomIsMissedWithItsReason) {
  start();
  const auto client = connect();
  const swa::WindowLocation first = put(*client, 1);
  for (unsigned number = 2; number <= 5; ++number) put(*client, number);
  ASSERT_TRUE(client->get_window(1, first, key_of(1), kLong).ok());
  EXPECT_EQ(expect<WindowMissed>(*client).reason, swa::WindowMiss::kRecycled);
  EXPECT_TRUE(has_metric("millrace_swa_evictions_total 1"));
  EXPECT_TRUE(has_metric("millrace_swa_misses_total{reason=\"recycled\"} 1"));
}

TEST_F(WindowServerTest, ALeasedWindowStaysUntilItsEngineGoes) {
  start();
  auto holder = connect();
  const auto client = connect();
  const swa::WindowLocation at = put(*holder, 1);
  ASSERT_TRUE(holder->get_window(1, at, key_of(1), kLong).ok());
  const SlotRef ref = expect<WindowReady>(*holder).ref;
  for (unsigned number = 2; number <= 9; ++number) put(*client, number);
  std::vector<std::byte> out(kWindowBytes);
  ASSERT_TRUE(holder->copy_window_out(ref, key_of(1), out).ok());
  EXPECT_EQ(out, window_of(1));
  holder.reset();
  EXPECT_TRUE(has_metric("millrace_swa_pool_slots{state=\"leased\"} 0"));
  for (unsigned number = 10; number <= 14; ++number) put(*client, number);
  ASSERT_TRUE(client->get_window(1, at, key_of(1), kLong).ok());
  EXPECT_EQ(expect<WindowMissed>(*client).reason, swa::WindowMiss::kRecycled);
  EXPECT_EQ(client->copy_window_out(ref, key_of(1), out).code(), absl::StatusCode::kAborted);
}

TEST_F(WindowServerTest, AWindowExpires) {
  config_.windows.limits.ttl = milliseconds(50);
  start();
  const auto client = connect();
  const swa::WindowLocation at = put(*client, 1);
  EXPECT_TRUE(has_metric("millrace_swa_expiries_total 1"));  // by itself
  ASSERT_TRUE(client->get_window(1, at, key_of(1), kLong).ok());
  EXPECT_EQ(expect<WindowMissed>(*client).reason, swa::WindowMiss::kExpired);
  std::vector<std::byte> out(kWindowBytes);
  EXPECT_EQ(client->copy_window_out({at.slot, at.generation}, key_of(1), out).code(),
            absl::StatusCode::kAborted);
}

TEST_F(WindowServerTest, AnotherFetcherOwnsOtherWindows) {
  start();
  const swa::WindowLocation at = put(*connect(), 1);
  config_.incarnation = 12;
  start();
  const auto client = connect();
  ASSERT_TRUE(client->get_window(1, at, key_of(1), kLong).ok());
  EXPECT_EQ(expect<WindowMissed>(*client).reason, swa::WindowMiss::kOtherOwner);
}

TEST_F(WindowServerTest, WithoutAPoolEverythingIsMissed) {
  config_.windows.window_bytes = 0;
  start();
  const auto client = connect();
  EXPECT_EQ(client->window_bytes(), 0u);
  EXPECT_EQ(client->put_window(1, key_of(1), window_of(1)).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(client->get_window(1, {}, key_of(1), kLong).ok());
  EXPECT_EQ(expect<WindowMissed>(*client).reason, swa::WindowMiss::kNoPool);
  std::vector<std::byte> out(1);
  EXPECT_EQ(client->copy_window_out({}, key_of(1), out).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(client->release_window(1).ok());
}

TEST_F(WindowServerTest, RefusesWhatDoesNotFit) {
  start();
  const auto client = connect(kWindowBytes - 1);
  EXPECT_EQ(client->put_window(1, key_of(1), window_of(1, kWindowBytes + 1)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->put_window(1, key_of(1), {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->put_window(1, key_of(1), window_of(1)).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(client->health().ok());
  put(*connect(), 1);
  config_.windows.pool_bytes = kWindowBytes;
  EXPECT_THAT(try_start().ToString(), HasSubstr("holds no window of 1500000 bytes"));
  config_.windows.window_bytes = kMaxWindowBytes + 1;
  EXPECT_THAT(try_start().ToString(), HasSubstr("a window has at most 8388608 bytes"));
}

TEST_F(WindowServerTest, TheLargestWindowFitsInAMessage) {
  config_.windows.window_bytes = kMaxWindowBytes;
  config_.windows.pool_bytes = std::size_t{2} * kMaxWindowBytes + 16384;
  start();
  const auto client = connect();
  const auto window = window_of(1, kMaxWindowBytes);
  ASSERT_TRUE(client->put_window(1, key_of(1), window).ok());
  ASSERT_TRUE(client->put_window(2, key_of(2), window).ok());
  const auto first = expect<WindowStored>(*client);
  ASSERT_TRUE(first.at.has_value());
  EXPECT_TRUE(expect<WindowStored>(*client).at.has_value());
  ASSERT_TRUE(client->get_window(1, *first.at, key_of(1), kLong).ok());
  std::vector<std::byte> out(kMaxWindowBytes);
  EXPECT_TRUE(client->copy_window_out(expect<WindowReady>(*client).ref, key_of(1), out).ok());
  EXPECT_EQ(out, window);
}

TEST_F(WindowServerTest, ADrainingFetcherTakesNoMoreWindows) {
  start();
  const auto client = connect();
  const swa::WindowLocation at = put(*client, 1);
  server_->begin_drain();
  ASSERT_TRUE(client->put_window(2, key_of(2), window_of(2)).ok());
  EXPECT_EQ(expect<WindowStored>(*client).at, std::nullopt);
  ASSERT_TRUE(client->get_window(3, at, key_of(1), kLong).ok());
  expect<WindowReady>(*client);
  EXPECT_TRUE(has_metric("millrace_swa_windows_total{outcome=\"stopping\"} 1"));
}

}  // namespace
}  // namespace millrace::storage::fetch
