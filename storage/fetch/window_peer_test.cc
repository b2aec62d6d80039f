// Fetchers of two machines that read each other's windows, and one that lies.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <random>
#include <thread>

#include "api/proto/swa.grpc.pb.h"
#include "common/str_cat.h"
#include "common/types.h"
#include "storage/ec/crc32c.h"
#include "storage/fetch/fetch_client.h"
#include "storage/fetch/fetch_server.h"
#include "storage/fetch/grpc_window_peers.h"
#include "storage/fetch/memory_block_io.h"

namespace millrace::storage::fetch {
namespace {

using std::chrono::milliseconds;
using swa::WindowMiss;
using ::testing::HasSubstr;

constexpr std::uint32_t kWindowBytes = 300'000;
constexpr milliseconds kLong{10000};

BlockKey key_of(unsigned number) {
  BlockKey key;
  key.bytes[0] = static_cast<std::uint8_t>(number);
  return key;
}

std::vector<std::byte> window_of(unsigned number) {
  std::mt19937_64 random(number);
  std::vector<std::byte> window(kWindowBytes);
  for (std::size_t i = 0; i < window.size(); i += 16) window[i] = static_cast<std::byte>(random());
  return window;
}

using Result = std::variant<std::vector<std::byte>, WindowMiss>;

/// A machine: its fetcher, and an engine there.
class Machine {
 public:
  explicit Machine(const std::string& name, std::uint64_t incarnation = 1) {
    config_.host_id = str_cat("window-peer-test-", ::getpid(), "-", name);
    config_.listen_address = str_cat("unix:", ::testing::TempDir(), config_.host_id, ".sock");
    config_.incarnation = incarnation;
    config_.block_bytes = 4096;
    config_.read_arena_bytes = 65536;
    config_.write_arena_bytes = 65536;
    config_.windows.window_bytes = kWindowBytes;
    config_.windows.pool_bytes = std::size_t{3} * 303'104 + 8192;
    config_.windows.listen_address = "127.0.0.1:0";
  }
  ~Machine() {
    stop();
    std::filesystem::remove(str_cat("/dev/shm/millrace-", config_.host_id, "++kvfetch.lock"));
  }

  FetchServerConfig& config() { return config_; }
  absl::Status try_start() {
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
    auto client = FetchClient::connect({.address = config_.listen_address, .client_id = "test"});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  void stop() {
    client_.reset();
    server_.reset();
  }
  FetchClient& client() { return *client_; }
  std::string address() const { return server_->window_address(); }

  swa::WindowLocation put(unsigned number) {
    EXPECT_TRUE(client_->put_window(1, key_of(number), window_of(number)).ok());
    const auto stored = next<WindowStored>();
    EXPECT_TRUE(stored.at.has_value());
    return stored.at.value_or(swa::WindowLocation{});
  }
  /// The window, or why not.
  Result get(const swa::WindowLocation& from, unsigned number, milliseconds timeout = kLong) {
    EXPECT_TRUE(client_->get_window(7, from, key_of(number), timeout).ok());
    const SessionEvent event = next_event();
    if (const auto* missed = std::get_if<WindowMissed>(&event)) return missed->reason;
    const auto* ready = std::get_if<WindowReady>(&event);
    EXPECT_NE(ready, nullptr);
    std::vector<std::byte> out(from.bytes);
    if (ready != nullptr) {
      const absl::Status copied = client_->copy_window_out(ready->ref, key_of(number), out);
      EXPECT_TRUE(copied.ok()) << copied;
    }
    EXPECT_TRUE(client_->release_window(7).ok());
    return out;
  }
  SessionEvent next_event() {
    const auto events = client_->poll(kLong);
    EXPECT_EQ(events.size(), 1u) << client_->health();
    return events.empty() ? SessionEvent{} : events[0];
  }
  template <typename Event>
  Event next() {
    const SessionEvent event = next_event();
    const auto* found = std::get_if<Event>(&event);
    EXPECT_NE(found, nullptr) << "event " << event.index();
    return found == nullptr ? Event{} : *found;
  }
  bool has_metric(std::string_view line) const {
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    while (registry_->exposition().find(line) == std::string::npos) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return true;
  }

 private:
  const Logger log_ = Logger::to_sink("kvfetch", LogLevel::kOff, [](std::string_view) {});
  FetchServerConfig config_;
  MemoryBlocks blocks_;
  std::optional<Registry> registry_;
  std::unique_ptr<FetchServer> server_;
  std::unique_ptr<FetchClient> client_;
};

TEST(WindowPeer, AWindowOfAnotherMachineIsReadOnceAndSharedThere) {
  Machine owner("owner");
  Machine reader("reader", 2);
  owner.start();
  reader.start();
  const swa::WindowLocation at = owner.put(1);
  EXPECT_EQ(at.address, owner.address());
  EXPECT_EQ(reader.get(at, 1), Result(window_of(1)));
  EXPECT_EQ(reader.get(at, 1), Result(window_of(1)));
  EXPECT_TRUE(reader.has_metric("millrace_swa_hits_total{source=\"remote\"} 1"));
  EXPECT_TRUE(reader.has_metric("millrace_swa_hits_total{source=\"local\"} 1"));
  EXPECT_TRUE(owner.has_metric("millrace_swa_peer_requests_total{outcome=\"served\"} 1"));
}

TEST(WindowPeer, ACopyLivesShortly) {
  Machine owner("owner");
  Machine reader("reader", 2);
  reader.config().windows.limits.copy_ttl = milliseconds(30);
  owner.start();
  reader.start();
  const swa::WindowLocation at = owner.put(1);
  EXPECT_EQ(reader.get(at, 1), Result(window_of(1)));
  EXPECT_TRUE(reader.has_metric("millrace_swa_expiries_total 1"));
  EXPECT_EQ(reader.get(at, 1), Result(window_of(1)));
  EXPECT_TRUE(reader.has_metric("millrace_swa_hits_total{source=\"remote\"} 2"));
}

TEST(WindowPeer, TheOwnerSaysWhyItHasAWindowNoMore) {
  Machine owner("owner");
  Machine reader("reader", 2);
  owner.config().windows.limits.ttl = milliseconds(3000);
  owner.start();
  reader.start();
  const swa::WindowLocation first = owner.put(1);
  for (unsigned number = 2; number <= 4; ++number) owner.put(number);  // recycles its slot
  EXPECT_EQ(reader.get(first, 1), Result(WindowMiss::kRecycled));
  const swa::WindowLocation last = owner.put(5);
  EXPECT_EQ(reader.get(last, 6), Result(WindowMiss::kCorrupt));  // another key
  swa::WindowLocation other = last;
  other.bytes -= 1;
  EXPECT_EQ(reader.get(other, 5), Result(WindowMiss::kCorrupt));  // another size
  other = last;
  other.slot = 1000;
  EXPECT_EQ(reader.get(other, 5), Result(WindowMiss::kRecycled));
  EXPECT_TRUE(owner.has_metric("millrace_swa_expiries_total 3"));  // in time, by itself
  EXPECT_EQ(reader.get(last, 5), Result(WindowMiss::kExpired));
  EXPECT_TRUE(owner.has_metric("millrace_swa_peer_requests_total{outcome=\"recycled\"} 2"));
  EXPECT_TRUE(reader.has_metric("millrace_swa_misses_total{reason=\"recycled\"} 2"));
}

TEST(WindowPeer, AnOwnerThatDiedIsUnreachableAndThenAnother) {
  Machine owner("owner");
  Machine reader("reader", 2);
  owner.start();
  reader.start();
  swa::WindowLocation at = owner.put(1);
  owner.stop();
  EXPECT_EQ(reader.get(at, 1), Result(WindowMiss::kUnreachable));
  owner.config().incarnation = 5;
  owner.start();
  at.address = owner.address();
  EXPECT_EQ(reader.get(at, 1), Result(WindowMiss::kOtherOwner));
  EXPECT_EQ(reader.get(owner.put(1), 1), Result(window_of(1)));
}

TEST(WindowPeer, AMachineThatListensToNobodyKeepsItsWindowsToItself) {
  Machine owner("owner");
  Machine reader("reader", 2);
  owner.config().windows.listen_address.clear();
  reader.config().windows.advertise_address = "10.1.1.1:77";
  owner.start();
  reader.start();
  const swa::WindowLocation at = owner.put(1);
  EXPECT_EQ(at.address, "");
  EXPECT_EQ(owner.get(at, 1), Result(window_of(1)));
  EXPECT_EQ(reader.get(at, 1), Result(WindowMiss::kUnreachable));
  EXPECT_EQ(reader.put(1).address, "10.1.1.1:77");
}

TEST(WindowPeer, TwoFetchersCannotListenAtOneAddress) {
  Machine owner("owner");
  Machine second("second");
  owner.start();
  second.config().windows.listen_address = owner.address();
  EXPECT_EQ(second.try_start().code(), absl::StatusCode::kUnavailable);
}

/// A machine that answers what it is told to; without an answer it leaves the caller waiting.
class Liar final : public proto::v1::KvWindows::CallbackService {
 public:
  using Answer = std::function<grpc::Status(const proto::v1::ReadKvWindow&, proto::v1::KvWindow&)>;

  Liar() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Liar() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
  void set_answer(Answer answer) { answer_ = std::move(answer); }
  swa::WindowLocation location() const {
    return {.host_id = "liar",
            .address = str_cat("127.0.0.1:", port_),
            .incarnation = 9,
            .slot = 4,
            .generation = 6,
            .bytes = kWindowBytes};
  }
  grpc::ServerUnaryReactor* Read(grpc::CallbackServerContext*,
                                 const proto::v1::ReadKvWindow* request,
                                 proto::v1::KvWindow* reply) override {
    auto* const reactor = new Reactor;
    if (answer_) reactor->Finish(answer_(*request, *reply));
    return reactor;
  }

  /// An honest answer.
  static void fill(const proto::v1::ReadKvWindow& request, proto::v1::KvWindow& reply) {
    auto& window = *reply.mutable_window();
    window.set_key(request.key());
    window.set_incarnation(request.incarnation());
    window.set_slot(request.slot());
    window.set_generation(request.generation());
    const auto bytes = window_of(static_cast<unsigned char>(request.key()[0]));
    window.set_crc(ec::crc32c(bytes));
    window.set_data(bytes.data(), bytes.size());
  }

 private:
  struct Reactor final : grpc::ServerUnaryReactor {
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }
  };

  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  Answer answer_;
};

PeerWindow read_from(WindowPeers& peers, const swa::WindowLocation& from, const BlockKey& key) {
  std::promise<PeerWindow> promise;
  peers.read(from, key, kLong, [&](PeerWindow read) { promise.set_value(std::move(read)); });
  return promise.get_future().get();
}

TEST(WindowPeer, WhatIsNotExactlyWhatWasAskedForIsNothing) {
  Liar liar;
  const auto peers = make_grpc_window_peers();
  const auto answer = [&](const std::function<void(proto::v1::KvWindowBytes&)>& spoil) {
    liar.set_answer([spoil](const auto& request, auto& reply) {
      Liar::fill(request, reply);
      spoil(*reply.mutable_window());
      return grpc::Status::OK;
    });
    return read_from(*peers, liar.location(), key_of(1));
  };
  const PeerWindow honest = answer([](auto&) {});
  EXPECT_EQ(honest.miss, std::nullopt);
  EXPECT_EQ(honest.window, window_of(1));
  const std::vector<std::function<void(proto::v1::KvWindowBytes&)>> lies = {
      [](auto& window) { window.set_key(std::string(32, 'x')); },
      [](auto& window) { window.set_incarnation(10); },
      [](auto& window) { window.set_slot(5); },
      [](auto& window) { window.set_generation(7); },
      [](auto& window) { window.set_crc(window.crc() + 1); },
      [](auto& window) { window.mutable_data()->pop_back(); },
      [](auto& window) { ++window.mutable_data()->back(); },
      [](auto& window) { window.Clear(); }};
  for (std::size_t i = 0; i < lies.size(); ++i) {
    const PeerWindow lie = answer(lies[i]);
    EXPECT_EQ(lie.miss, WindowMiss::kCorrupt) << "lie " << i;
    EXPECT_TRUE(lie.window.empty());
  }
  liar.set_answer([](const auto&, auto& reply) {
    reply.set_miss(200);
    return grpc::Status::OK;
  });
  EXPECT_EQ(read_from(*peers, liar.location(), key_of(1)).miss, WindowMiss::kCorrupt);
  liar.set_answer([](const auto&, auto&) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "another version");
  });
  EXPECT_EQ(read_from(*peers, liar.location(), key_of(1)).miss, WindowMiss::kUnreachable);
}

TEST(WindowPeer, AMachineThatDoesNotAnswerCostsTheDeadline) {
  Liar silent;
  Machine reader("reader");
  reader.config().windows.max_peer_reads = 1;
  reader.start();
  EXPECT_EQ(reader.get(silent.location(), 1, milliseconds(40)), Result(WindowMiss::kDeadline));
  // While one is under way there is no place for another one.
  ASSERT_TRUE(reader.client().get_window(1, silent.location(), key_of(1), kLong).ok());
  EXPECT_EQ(reader.get(silent.location(), 2), Result(WindowMiss::kBusy));
  ASSERT_TRUE(reader.client().release_window(1).ok());
  EXPECT_EQ(reader.next<WindowMissed>().reason, WindowMiss::kCancelled);
  reader.stop();  // does not wait for the silent one
}

TEST(WindowPeer, KeepsABoundedNumberOfConnections) {
  Liar first;
  Liar second;
  const auto honest = [](const auto& request, auto& reply) {
    Liar::fill(request, reply);
    return grpc::Status::OK;
  };
  first.set_answer(honest);
  second.set_answer(honest);
  const auto peers = make_grpc_window_peers(1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(read_from(*peers, first.location(), key_of(1)).window, window_of(1));
    EXPECT_EQ(read_from(*peers, second.location(), key_of(2)).window, window_of(2));
  }
}

TEST(WindowPeer, RefusesWhatItCannotRead) {
  Machine owner("owner");
  owner.start();
  const auto stub = proto::v1::KvWindows::NewStub(
      grpc::CreateChannel(owner.address(), grpc::InsecureChannelCredentials()));
  const auto read = [&](const proto::v1::ReadKvWindow& request) {
    grpc::ClientContext context;
    proto::v1::KvWindow reply;
    return stub->Read(&context, request, &reply);
  };
  proto::v1::ReadKvWindow request;
  EXPECT_THAT(read(request).error_message(),
              HasSubstr(str_cat("protocol 0, this fetcher ", kProtocolVersion)));
  request.set_protocol_version(kProtocolVersion);
  request.set_key("short");
  EXPECT_THAT(read(request).error_message(), HasSubstr("key has 5 bytes, not 32"));
}

}  // namespace
}  // namespace millrace::storage::fetch
