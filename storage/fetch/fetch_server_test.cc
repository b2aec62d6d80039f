// An engine's client and the fetcher's server over a Unix socket, blocks in memory behind it.

#include "storage/fetch/fetch_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "api/proto/kvfetch.grpc.pb.h"
#include "common/str_cat.h"
#include "common/types.h"
#include "storage/fetch/fetch_client.h"
#include "storage/fetch/memory_block_io.h"

namespace millrace::storage::fetch {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr std::uint32_t kBlockBytes = 11392;
constexpr milliseconds kLong{10000};

BlockKey key_of(int chain, int index) {
  BlockKey key;
  key.bytes[0] = static_cast<std::uint8_t>(chain);
  key.bytes[1] = static_cast<std::uint8_t>(index);
  key.bytes[2] = static_cast<std::uint8_t>(index >> 8);
  return key;
}

std::vector<std::byte> block_of(const BlockKey& key) {
  std::mt19937_64 random(key.bytes[0] * 65536u + key.bytes[1] * 256u + key.bytes[2]);
  std::vector<std::byte> block(kBlockBytes);
  for (std::size_t i = 0; i < block.size(); i += 8) {
    const std::uint64_t word = random();
    std::memcpy(block.data() + i, &word, sizeof(word));
  }
  return block;
}

std::vector<BlockKey> chain(int number, int length) {
  std::vector<BlockKey> keys;
  keys.reserve(static_cast<std::size_t>(length));
  for (int i = 0; i < length; ++i) keys.push_back(key_of(number, i));
  return keys;
}

/// What came of one fetch.
struct Outcome {
  std::vector<SlotRef> slots;
  FetchDone done;
};

class FetchServerTest : public ::testing::Test {
 protected:
  FetchServerTest() {
    const std::string name = str_cat("fetch-server-test-", ::getpid());
    config_.host_id = name;
    config_.listen_address = str_cat("unix:", ::testing::TempDir(), name, ".sock");
    config_.incarnation = 1;
    config_.block_bytes = kBlockBytes;
    config_.read_arena_bytes = std::size_t{64} * 12288 + 8192;
    config_.write_arena_bytes = std::size_t{8} * 12288 + 8192;
  }
  ~FetchServerTest() override {
    server_.reset();
    std::filesystem::remove(str_cat("/dev/shm/millrace-", config_.host_id, "++kvfetch.lock"));
  }

  void start() {
    server_.reset();
    registry_.emplace();
    auto server =
        FetchServer::start(config_, std::make_unique<MemoryBlockIo>(blocks_), *registry_, log_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::unique_ptr<FetchClient> connect() {
    auto client = FetchClient::connect({.address = config_.listen_address, .client_id = "test"});
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  void put_chain(int number, int length) {
    for (const BlockKey& key : chain(number, length)) blocks_.put(key, block_of(key));
  }

  /// Waits until the fetch is done; nothing else may come.
  static Outcome wait_done(FetchClient& client, RequestId id) {
    Outcome outcome;
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    while (std::chrono::steady_clock::now() < deadline) {
      for (const SessionEvent& event : client.poll(milliseconds(100))) {
        if (const auto* ready = std::get_if<BlockReady>(&event)) {
          EXPECT_EQ(ready->request_id, id);
          EXPECT_EQ(ready->index, outcome.slots.size());
          outcome.slots.push_back(ready->ref);
        } else if (const auto* done = std::get_if<FetchDone>(&event)) {
          EXPECT_EQ(done->request_id, id);
          outcome.done = *done;
          return outcome;
        }
      }
      if (!client.health().ok()) break;
    }
    ADD_FAILURE() << "fetch " << id << " did not end: " << client.health();
    return outcome;
  }
  static Outcome fetch(FetchClient& client, RequestId id, const std::vector<BlockKey>& keys) {
    EXPECT_TRUE(client.fetch(id, keys, kBlockBytes, 0, kLong).ok());
    return wait_done(client, id);
  }
  static void expect_blocks(const FetchClient& client, const std::vector<BlockKey>& keys,
                            const Outcome& outcome) {
    std::vector<std::byte> out(kBlockBytes);
    for (std::size_t i = 0; i < outcome.slots.size(); ++i) {
      ASSERT_TRUE(client.copy_out(outcome.slots[i], keys[i], out).ok());
      EXPECT_EQ(out, block_of(keys[i]));
    }
  }
  template <typename Event>
  static Event wait_for(FetchClient& client) {
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    while (std::chrono::steady_clock::now() < deadline) {
      for (const SessionEvent& event : client.poll(milliseconds(100))) {
        if (const auto* found = std::get_if<Event>(&event)) return *found;
      }
    }
    ADD_FAILURE() << "no such event came";
    return {};
  }
  template <typename Condition>
  static bool within(milliseconds time, Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + time;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }
  bool has_metric(std::string_view line) const {
    return registry_->exposition().find(line) != std::string::npos;
  }

  const Logger log_ = Logger::to_sink("kvfetch", LogLevel::kOff, [](std::string_view) {});
  FetchServerConfig config_;
  MemoryBlocks blocks_;
  std::optional<Registry> registry_;
  std::unique_ptr<FetchServer> server_;
};

TEST_F(FetchServerTest, AWholePrefixComesThrough) {
  put_chain(1, 40);
  start();
  const auto client = connect();
  const auto keys = chain(1, 40);
  const Outcome outcome = fetch(*client, 7, keys);
  EXPECT_EQ(outcome.done.end, FetchEnd::kComplete);
  EXPECT_EQ(outcome.done.ready_blocks, 40u);
  expect_blocks(*client, keys, outcome);
  EXPECT_TRUE(within(
      kLong, [&] { return has_metric("millrace_storage_fetch_read_slots{state=\"ready\"} 40"); }));
  ASSERT_TRUE(client->cancel(7).ok());
  EXPECT_TRUE(within(kLong, [&] {
    return has_metric("millrace_storage_fetch_read_slots{state=\"free\"} 64");
  })) << registry_->exposition();
  EXPECT_TRUE(has_metric("millrace_storage_fetch_ends_total{reason=\"complete\"} 1"));
  EXPECT_TRUE(has_metric("millrace_storage_fetch_seconds_count 1"));
  std::vector<std::byte> out(kBlockBytes);
  EXPECT_EQ(client->copy_out(outcome.slots[0], keys[0], out).code(), absl::StatusCode::kAborted);
}

TEST_F(FetchServerTest, APrefixIsShortWhereABlockIsMissing) {
  put_chain(1, 5);
  start();
  const auto client = connect();
  const auto keys = chain(1, 9);
  const Outcome outcome = fetch(*client, 1, keys);
  EXPECT_EQ(outcome.done.end, FetchEnd::kNotFound);
  EXPECT_EQ(outcome.done.ready_blocks, 5u);
  expect_blocks(*client, keys, outcome);
}

TEST_F(FetchServerTest, APrefixLargerThanTheArenaFlowsThroughIt) {
  put_chain(1, 300);
  start();
  const auto client = connect();
  const auto keys = chain(1, 300);
  ASSERT_TRUE(client->fetch(1, keys, kBlockBytes, 0, kLong).ok());
  std::vector<std::byte> out(kBlockBytes);
  std::uint32_t copied = 0;
  std::optional<FetchDone> done;
  while (!done) {
    const auto events = client->poll(kLong);
    ASSERT_FALSE(events.empty());
    for (const SessionEvent& event : events) {
      if (const auto* ready = std::get_if<BlockReady>(&event)) {
        ASSERT_TRUE(client->copy_out(ready->ref, keys[ready->index], out).ok());
        EXPECT_EQ(out, block_of(keys[ready->index]));
        const std::uint32_t index = ready->index;
        ASSERT_TRUE(client->release(1, {&index, 1}).ok());
        ++copied;
      } else if (const auto* end = std::get_if<FetchDone>(&event)) {
        done = *end;
      }
    }
  }
  EXPECT_EQ(done->end, FetchEnd::kComplete);
  EXPECT_EQ(copied, 300u);
}

TEST_F(FetchServerTest, TwoEnginesShareOneRead) {
  put_chain(1, 20);
  start();
  blocks_.hold();
  const auto first = connect();
  const auto second = connect();
  const auto keys = chain(1, 20);
  ASSERT_TRUE(first->fetch(1, keys, kBlockBytes, 0, kLong).ok());
  ASSERT_TRUE(second->fetch(1, keys, kBlockBytes, 0, kLong).ok());
  ASSERT_TRUE(
      within(kLong, [&] { return has_metric("millrace_storage_fetch_shared_blocks_total 20"); }));
  blocks_.let_go();
  expect_blocks(*first, keys, wait_done(*first, 1));
  const Outcome outcome = wait_done(*second, 1);
  EXPECT_EQ(outcome.done.ready_blocks, 20u);
  EXPECT_EQ(blocks_.reads(), 20);
  ASSERT_TRUE(first->cancel(1).ok());
  std::this_thread::sleep_for(milliseconds(20));
  expect_blocks(*second, keys, outcome);  // the second has them still
}

TEST_F(FetchServerTest, AnEngineThatGoesGivesEverythingBack) {
  put_chain(1, 64);
  put_chain(2, 64);
  start();
  auto first = connect();
  EXPECT_EQ(fetch(*first, 1, chain(1, 64)).done.ready_blocks, 64u);
  ASSERT_TRUE(first->reserve(2, 8).ok());
  EXPECT_EQ(wait_for<WriteSlots>(*first).slots.size(), 8u);
  const auto second = connect();
  const Outcome busy = fetch(*second, 1, chain(2, 64));
  EXPECT_EQ(busy.done.end, FetchEnd::kBusy);  // after a bounded wait
  EXPECT_EQ(busy.done.ready_blocks, 0u);
  ASSERT_TRUE(second->reserve(2, 8).ok());
  EXPECT_TRUE(wait_for<WriteSlots>(*second).slots.empty());
  first.reset();
  EXPECT_EQ(fetch(*second, 3, chain(2, 64)).done.end, FetchEnd::kComplete);
  ASSERT_TRUE(second->reserve(4, 8).ok());
  EXPECT_EQ(wait_for<WriteSlots>(*second).slots.size(), 8u);
}

TEST_F(FetchServerTest, NewBlocksGoOutAndComeBack) {
  start();
  const auto writer = connect();
  const auto keys = chain(5, 8);
  ASSERT_TRUE(writer->reserve(1, 20).ok());
  const auto slots = wait_for<WriteSlots>(*writer).slots;
  ASSERT_EQ(slots.size(), 8u);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    ASSERT_TRUE(writer
                    ->store(slots[i], keys[i], block_of(keys[i]), static_cast<std::uint32_t>(i),
                            TtlClass::kChatbot)
                    .ok());
  }
  std::size_t stored = 0;
  while (stored < slots.size()) {
    const auto events = writer->poll(kLong);
    ASSERT_FALSE(events.empty());
    for (const SessionEvent& event : events) {
      EXPECT_EQ(std::get<BlockStored>(event).end, StoreEnd::kStored);
      ++stored;
    }
  }
  const auto reader = connect();
  const Outcome outcome = fetch(*reader, 1, keys);
  EXPECT_EQ(outcome.done.ready_blocks, 8u);
  expect_blocks(*reader, keys, outcome);
  // The slot of a stored block is nobody's any more.
  EXPECT_EQ(writer->store(slots[0], keys[0], block_of(keys[0]), 0, TtlClass::kAgent).code(),
            absl::StatusCode::kAborted);
  ASSERT_TRUE(writer->return_slot(slots[0]).ok());
}

TEST_F(FetchServerTest, ADeadlineEndsAFetchWhoseReadHangs) {
  put_chain(1, 2);
  start();
  blocks_.hold();
  const auto client = connect();
  ASSERT_TRUE(client->fetch(1, chain(1, 2), kBlockBytes, 0, milliseconds(30)).ok());
  EXPECT_EQ(wait_done(*client, 1).done.end, FetchEnd::kDeadline);
}

TEST_F(FetchServerTest, DrainsAndSaysSo) {
  put_chain(1, 2);
  start();
  blocks_.hold();
  const auto client = connect();
  ASSERT_TRUE(client->fetch(1, chain(1, 2), kBlockBytes, 0, kLong).ok());
  ASSERT_TRUE(within(kLong, [&] { return blocks_.reads() == 2; }));
  server_->begin_drain();
  EXPECT_FALSE(server_->wait_drained(milliseconds(30)));
  blocks_.let_go();
  EXPECT_TRUE(server_->wait_drained(kLong));
  const Outcome outcome = wait_done(*client, 1);
  EXPECT_EQ(outcome.done.end, FetchEnd::kComplete);
  EXPECT_EQ(fetch(*client, 2, chain(1, 2)).done.end, FetchEnd::kStopping);
  server_.reset();
  EXPECT_TRUE(within(kLong, [&] { return !client->health().ok(); }));
  EXPECT_EQ(client->reserve(1, 1).code(), absl::StatusCode::kUnavailable);
  expect_blocks(*client, chain(1, 2), outcome);  // what was ready stays so, in the old mapping
}

TEST_F(FetchServerTest, RefusesASecondFetcherAndAddressesThatAreNone) {
  start();
  const auto refused = [&](const FetchServerConfig& config) {
    Registry registry;
    return FetchServer::start(config, std::make_unique<MemoryBlockIo>(blocks_), registry, log_)
        .status();
  };
  FetchServerConfig config = config_;
  config.listen_address += "2";
  EXPECT_EQ(refused(config).code(), absl::StatusCode::kFailedPrecondition);
  config = config_;
  config.host_id += "-2";
  EXPECT_THAT(refused(config).ToString(), HasSubstr("another process listens"));
  std::filesystem::remove(str_cat("/dev/shm/millrace-", config.host_id, "++kvfetch.lock"));
  server_.reset();
  config = config_;
  config.listen_address = "127.0.0.1:0";
  EXPECT_EQ(refused(config).code(), absl::StatusCode::kInvalidArgument);
  config = config_;
  config.read_arena_bytes = 4096;
  EXPECT_EQ(refused(config).code(), absl::StatusCode::kInvalidArgument);
  config = config_;
  config.read_arena_bytes = std::size_t{1} << 45;
  EXPECT_EQ(refused(config).code(), absl::StatusCode::kResourceExhausted) << refused(config);
  EXPECT_EQ(
      FetchClient::connect({.address = config_.listen_address, .client_id = "x"}).status().code(),
      absl::StatusCode::kUnavailable);
}

/// A peer that speaks the protocol badly.
class RawStream {
 public:
  explicit RawStream(const std::string& address)
      : stub_(proto::v1::KvFetch::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        stream_(stub_->Connect(&context_)) {}

  static proto::v1::KvFetchCommands hello(std::uint32_t arena_version = kArenaVersion) {
    proto::v1::KvFetchCommands message;
    message.mutable_hello()->set_protocol_version(kProtocolVersion);
    message.mutable_hello()->set_arena_version(arena_version);
    return message;
  }
  void send(const proto::v1::KvFetchCommands& message) { stream_->Write(message); }
  std::optional<proto::v1::KvFetchEvents> receive() {
    proto::v1::KvFetchEvents message;
    return stream_->Read(&message) ? std::optional(message) : std::nullopt;
  }
  grpc::Status end() {
    while (receive()) continue;
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<proto::v1::KvFetch::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::v1::KvFetchCommands, proto::v1::KvFetchEvents>>
      stream_;
};

TEST_F(FetchServerTest, RefusesOtherVersionsByName) {
  start();
  RawStream stream(config_.listen_address);
  stream.send(RawStream::hello(kArenaVersion + 1));
  const grpc::Status status = stream.end();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("arenas of version 2"));
  EXPECT_THAT(status.error_message(), HasSubstr("arenas of version 1"));
}

TEST_F(FetchServerTest, RefusesMalformedCommandsByField) {
  start();
  const auto refusal_of = [&](const proto::v1::KvFetchCommands& message) {
    RawStream stream(config_.listen_address);
    stream.send(RawStream::hello());
    EXPECT_TRUE(stream.receive().has_value());
    stream.send(message);
    const grpc::Status status = stream.end();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  proto::v1::KvFetchCommands message;
  message.add_commands()->mutable_fetch()->set_keys("short");
  EXPECT_THAT(refusal_of(message), HasSubstr("fetch.keys has 5 bytes"));
  message.mutable_commands(0)->mutable_seal()->set_key("short");
  EXPECT_THAT(refusal_of(message), HasSubstr("seal.key has 5 bytes"));
  message.mutable_commands(0)->mutable_seal()->set_key(std::string(32, 'k'));
  message.mutable_commands(0)->mutable_seal()->set_ttl_class(2);
  EXPECT_THAT(refusal_of(message), HasSubstr("seal.ttl_class is 2"));
  message.mutable_commands(0)->mutable_put_window()->set_key("short");
  EXPECT_THAT(refusal_of(message), HasSubstr("put_window.key has 5 bytes"));
  message.mutable_commands(0)->mutable_get_window()->set_key("short");
  EXPECT_THAT(refusal_of(message), HasSubstr("get_window.key has 5 bytes"));
  message.mutable_commands(0)->clear_command();
  EXPECT_THAT(refusal_of(message), HasSubstr("without content"));
  RawStream stream(config_.listen_address);
  stream.send(message);
  EXPECT_THAT(stream.end().error_message(), HasSubstr("must be hello"));
}

TEST_F(FetchServerTest, ABlockWithAnotherChecksumIsNotStored) {
  start();
  RawStream stream(config_.listen_address);
  stream.send(RawStream::hello());
  ASSERT_TRUE(stream.receive().has_value());
  proto::v1::KvFetchCommands message;
  message.add_commands()->mutable_reserve()->set_count(1);
  stream.send(message);
  const auto slots = stream.receive();
  ASSERT_TRUE(slots.has_value());
  message.Clear();
  auto& seal = *message.add_commands()->mutable_seal();
  *seal.mutable_ref() = slots->events(0).slots().slots(0);
  seal.set_key(std::string(32, 'k'));
  seal.set_block_bytes(kBlockBytes);
  seal.set_crc(12345);
  stream.send(message);
  const auto stored = stream.receive();
  ASSERT_TRUE(stored.has_value());
  EXPECT_EQ(stored->events(0).stored().end(), static_cast<std::uint32_t>(StoreEnd::kBadChecksum));
  BlockKey key;
  key.bytes.fill('k');
  EXPECT_TRUE(blocks_.find(key).empty());
}

TEST_F(FetchServerTest, EnginesInParallelGetTheirOwnBytes) {
  for (int number = 0; number < 6; ++number) put_chain(number, 30);
  start();
  std::atomic<int> complete{0};
  std::vector<std::thread> engines;
  for (int engine = 0; engine < 4; ++engine) {
    engines.emplace_back([&, engine] {
      const auto client = connect();
      std::mt19937 random(static_cast<unsigned>(engine));
      for (RequestId id = 1; id <= 60; ++id) {
        const auto keys =
            chain(static_cast<int>(random() % 6), 1 + static_cast<int>(random() % 30));
        const Outcome outcome = fetch(*client, id, keys);
        expect_blocks(*client, keys, outcome);
        if (outcome.done.end == FetchEnd::kComplete) ++complete;
        EXPECT_TRUE(client->cancel(id).ok());
      }
    });
  }
  for (std::thread& engine : engines) engine.join();
  EXPECT_GT(complete, 120);  // some may have found the arena busy
  EXPECT_TRUE(within(
      kLong, [&] { return has_metric("millrace_storage_fetch_read_slots{state=\"free\"} 64"); }));
}

}  // namespace
}  // namespace millrace::storage::fetch
