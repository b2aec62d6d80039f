// millrace-kvfetch as a process, in front of simulated storage nodes: service, death, drain.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <random>
#include <thread>

#include "common/http/http_client.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/process/child_process.h"
#include "common/str_cat.h"
#include "storage/fetch/fetch_client.h"
#include "storage/store/grpc_service.h"
#include "storage/store/simulated_nodes.h"

namespace millrace::storage::fetch {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr std::uint32_t kBlockBytes = 113'920;  // of the official model
constexpr milliseconds kLong{10000};

/// Twelve nodes behind one address.
class NodeServer final : public ShardEndpoint {
 public:
  NodeServer() {
    service_ = store::make_storage_service(*this);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    builder.SetMaxReceiveMessageSize(store::kMaxMessageBytes);
    server_ = builder.BuildAndStart();
    StorageMap map = *store::simulated_map(10, 2, 1, kBlockBytes);
    for (StorageNodeEntry& node : map.nodes) node.address = str_cat("127.0.0.1:", port);
    map_ = std::make_shared<const StorageMap>(std::move(map));
    nodes_.emplace(map_);
  }
  ~NodeServer() override {
    server_->Shutdown(std::chrono::system_clock::now() + milliseconds(100));
    server_->Wait();
  }

  void handle(ShardRequest request, ShardReplyCallback done) override {
    std::lock_guard lock(mutex_);
    nodes_->handle(std::move(request), std::move(done));
  }
  void set_fault(const std::string& target_id, store::TargetFault fault) {
    std::lock_guard lock(mutex_);
    nodes_->set_fault(target_id, fault);
  }
  const StorageMap& map() const { return *map_; }

 private:
  std::shared_ptr<const StorageMap> map_;
  std::mutex mutex_;
  std::optional<store::SimulatedNodes> nodes_;  // guarded by mutex_
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

BlockKey key_of(int index) {
  BlockKey key;
  std::memcpy(key.bytes.data(), &index, sizeof(index));
  key.bytes[31] = 1;
  return key;
}

std::vector<std::byte> block_of(int index) {
  std::mt19937_64 random(static_cast<std::uint64_t>(index));
  std::vector<std::byte> block(kBlockBytes);
  for (std::size_t i = 0; i < block.size(); i += 8) {
    const std::uint64_t word = random();
    std::memcpy(block.data() + i, &word, sizeof(word));
  }
  return block;
}

class FetchProcess : public ::testing::Test {
 protected:
  FetchProcess() {
    name_ = str_cat("fetch-process-", ::getpid());
    address_ = str_cat("unix:", path("sock"));
    EXPECT_TRUE(save_map(path("map"), nodes_.map()).ok());
  }
  ~FetchProcess() override {
    child_.reset();
    remove_shared_regions(str_cat("millrace-", name_, "++kvfetch"));
    for (const char* what : {"sock", "map", "ready", "log"}) std::filesystem::remove(path(what));
  }

  std::string path(const std::string& what) const {
    return str_cat(::testing::TempDir(), name_, ".", what);
  }
  std::vector<std::string> arguments() const {
    return {"--listen",    address_, "--host-id",         name_, "--map",        path("map"),
            "--arena-mib", "8",      "--write-arena-mib", "2",   "--ready-file", path("ready"),
            "--log-level", "warn"};
  }
  void start() {
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
  }
  /// Runs it to its end with other arguments; what it says.
  std::string run_to_end(const std::vector<std::string>& arguments, int code) {
    std::filesystem::remove(path("log"));
    auto child = ChildProcess::start(
        {.program = MILLRACE_KVFETCH_PROGRAM, .arguments = arguments, .output_path = path("log")});
    EXPECT_TRUE(child.ok()) << child.status();
    const auto status = child->wait_for(kLong);
    EXPECT_TRUE(status.has_value() && status->code == code) << log();
    return log();
  }
  std::string log() const { return read_file(path("log")).value_or("no log"); }
  std::unique_ptr<FetchClient> connect() const {
    auto client = FetchClient::connect({.address = address_, .client_id = "test"});
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  int arenas_in_memory() const {
    int count = 0;
    for (const auto& file : std::filesystem::directory_iterator("/dev/shm")) {
      count +=
          file.path().filename().string().starts_with(str_cat("millrace-", name_, "++kvfetch+"));
    }
    return count;
  }

  static void store_blocks(FetchClient& client, int count) {
    int sealed = 0;
    int stored = 0;
    ASSERT_TRUE(client.reserve(1, 8).ok());
    while (stored < count) {
      const auto events = client.poll(kLong);
      ASSERT_FALSE(events.empty()) << client.health();
      for (const SessionEvent& event : events) {
        if (const auto* slots = std::get_if<WriteSlots>(&event)) {
          for (const SlotRef& ref : slots->slots) {
            if (sealed == count) break;
            ASSERT_TRUE(client
                            .store(ref, key_of(sealed), block_of(sealed),
                                   static_cast<std::uint32_t>(sealed), TtlClass::kAgent)
                            .ok());
            ++sealed;
          }
        } else if (const auto* end = std::get_if<BlockStored>(&event)) {
          ASSERT_EQ(end->end, StoreEnd::kStored) << store_end_name(end->end);
          ++stored;
          if (sealed < count) {
            ASSERT_TRUE(client.reserve(1, 1).ok());
          }
        }
      }
    }
  }

  /// Fetches blocks 0..count-1, comparing each with what was stored, until `client` breaks or the
  /// fetch ends. Returns how many were right; none may be wrong.
  static int fetch_and_compare(FetchClient& client, RequestId id, int count) {
    std::vector<BlockKey> keys;
    keys.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) keys.push_back(key_of(i));
    if (!client.fetch(id, keys, kBlockBytes, 0, kLong).ok()) return 0;
    std::vector<std::byte> out(kBlockBytes);
    int right = 0;
    while (true) {
      const auto events = client.poll(milliseconds(200));
      if (events.empty() && !client.health().ok()) return right;
      for (const SessionEvent& event : events) {
        if (const auto* ready = std::get_if<BlockReady>(&event)) {
          if (!client.copy_out(ready->ref, key_of(static_cast<int>(ready->index)), out).ok()) {
            continue;
          }
          EXPECT_EQ(out, block_of(static_cast<int>(ready->index)));
          ++right;
          client.release(id, {&ready->index, 1}).IgnoreError();
        } else if (std::holds_alternative<FetchDone>(event)) {
          return right;
        }
      }
    }
  }

  NodeServer nodes_;
  std::string name_;
  std::string address_;
  std::optional<ChildProcess> child_;
};

TEST_F(FetchProcess, BlocksGoToTheNodesAndComeBack) {
  start();
  const auto client = connect();
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(client->block_bytes(), kBlockBytes);  // from the map
  store_blocks(*client, 100);
  EXPECT_EQ(fetch_and_compare(*client, 2, 100), 100);
  // Two nodes are down, a third damages what it serves: none of it is used.
  nodes_.set_fault("t3", store::TargetFault::kUnavailable);
  nodes_.set_fault("t7", store::TargetFault::kFlipBit);
  EXPECT_EQ(fetch_and_compare(*client, 3, 100), 100);
  nodes_.set_fault("t9", store::TargetFault::kZeros);
  EXPECT_EQ(fetch_and_compare(*client, 4, 100), 0);  // a third loss: a clean miss
  child_->send(SIGTERM);
  const auto status = child_->wait_for(kLong);
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(status->is_success()) << describe(*status) << log();
  EXPECT_EQ(arenas_in_memory(), 0);
}

TEST_F(FetchProcess, AKilledFetcherLeavesNothingWrong) {
  constexpr int kKills = 12;
  start();
  store_blocks(*connect(), 60);
  std::mt19937 random(1);
  int right = 0;
  int survivors = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    const auto client = connect();
    ASSERT_NE(client, nullptr) << log();
    std::thread killer([&, delay = random() % 80000] {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      child_->send(SIGKILL);
    });
    for (RequestId id = 1; client->health().ok(); ++id) {
      right += fetch_and_compare(*client, id, 60);
    }
    killer.join();
    ASSERT_TRUE(child_->wait_for(kLong).has_value());
    EXPECT_EQ(arenas_in_memory(), 2);  // as the dead left them
    EXPECT_EQ(client->fetch(1, {}, 1, 0, kLong).code(), absl::StatusCode::kUnavailable);
    start();
    EXPECT_EQ(arenas_in_memory(), 2);  // its own
    survivors += fetch_and_compare(*connect(), 1, 60);
  }
  EXPECT_GT(right, kKills);
  EXPECT_EQ(survivors, kKills * 60);
}

TEST_F(FetchProcess, ShowsItsMetrics) {
  start();
  const auto client = connect();
  store_blocks(*client, 3);
  EXPECT_EQ(fetch_and_compare(*client, 2, 5), 3);
  const auto ready = parse_json(*read_file(path("ready")));
  ASSERT_TRUE(ready.ok());
  common::http::HttpClient http;
  std::string body;
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  while (body.find("fetch_ends_total{reason=\"not_found\"} 1") == std::string::npos) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << body;
    const auto response =
        http.get(str_cat("http://", *json_string(*ready, "metrics_address"), "/metrics"));
    ASSERT_TRUE(response.ok()) << response.status();
    body = response->body;
  }
  EXPECT_THAT(body, HasSubstr("millrace_storage_fetch_stores_total{outcome=\"stored\"} 3"));
  EXPECT_THAT(body, HasSubstr("millrace_storage_fetch_ready_blocks_total 3"));
  EXPECT_THAT(body, HasSubstr("millrace_storage_client_"));
}

TEST_F(FetchProcess, SaysWhyItDoesNotStart) {
  EXPECT_THAT(run_to_end({"--listen", address_, "--host-id", name_}, 1),
              HasSubstr("--map or --controller is needed"));
  EXPECT_THAT(run_to_end({"--listen", address_, "--host-id", name_, "--map", path("none")}, 1),
              HasSubstr("there is no storage map in"));
  auto arguments = this->arguments();
  arguments[7] = "33554432";  // 32 TiB of arena
  EXPECT_THAT(run_to_end(arguments, 1), HasSubstr("bytes of shared memory"));
  EXPECT_EQ(arenas_in_memory(), 0);
  start();
  EXPECT_THAT(run_to_end(this->arguments(), 1), HasSubstr("another millrace-kvfetch runs"));
}

}  // namespace
}  // namespace millrace::storage::fetch
