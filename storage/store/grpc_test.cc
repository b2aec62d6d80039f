#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "api/proto/storage.grpc.pb.h"
#include "common/str_cat.h"
#include "common/types.h"
#include "storage/store/block_store.h"
#include "storage/store/grpc_service.h"
#include "storage/store/grpc_transport.h"
#include "storage/store/simulated_nodes.h"
#include "storage/store/wire_codec.h"

namespace millrace::storage::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

BlockKey key_of(std::uint32_t number) {
  BlockKey key;
  std::mt19937 random(number);
  for (auto& byte : key.bytes) byte = static_cast<std::uint8_t>(random());
  return key;
}

std::vector<std::byte> block_of(std::uint32_t number, std::size_t bytes) {
  std::mt19937 random(number);
  std::vector<std::byte> block(bytes);
  for (std::byte& byte : block) byte = static_cast<std::byte>(random());
  return block;
}

/// SimulatedNodes for the threads of a server.
class SharedNodes : public ShardEndpoint {
 public:
  explicit SharedNodes(std::shared_ptr<const StorageMap> map) : nodes_(std::move(map)) {}

  void handle(ShardRequest request, ShardReplyCallback done) override {
    std::lock_guard lock(mutex_);
    nodes_.handle(std::move(request), std::move(done));
  }
  void set_fault(const std::string& target_id, TargetFault fault) {
    std::lock_guard lock(mutex_);
    nodes_.set_fault(target_id, fault);
  }

 private:
  std::mutex mutex_;
  SimulatedNodes nodes_;  // guarded by mutex_
};

/// Keeps every request until it is told to answer.
class HoldingEndpoint : public ShardEndpoint {
 public:
  void handle(ShardRequest, ShardReplyCallback done) override {
    std::lock_guard lock(mutex_);
    held_.push_back(std::move(done));
    arrived_.notify_all();
  }
  void wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(arrived_.wait_for(lock, seconds(20), [&] { return held_.size() >= count; }));
  }
  void answer_all() {
    std::vector<ShardReplyCallback> held;
    {
      std::lock_guard lock(mutex_);
      held.swap(held_);
    }
    for (const ShardReplyCallback& done : held) {
      ShardReply reply;
      reply.result = ShardResult::kOk;
      done(std::move(reply));
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<ShardReplyCallback> held_;  // guarded by mutex_
};

/// Collects replies from any thread.
class Replies {
 public:
  ShardReplyCallback next() {
    return [this](ShardReply reply) {
      std::lock_guard lock(mutex_);
      replies_.push_back(std::move(reply));
      arrived_.notify_all();
    };
  }
  std::vector<ShardReply> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(arrived_.wait_for(lock, seconds(20), [&] { return replies_.size() >= count; }));
    EXPECT_EQ(replies_.size(), count);
    return std::exchange(replies_, {});
  }
  std::size_t count_of(ShardResult result, std::size_t of) {
    std::size_t count = 0;
    for (const ShardReply& reply : wait_for(of)) count += reply.result == result;
    return count;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<ShardReply> replies_;  // guarded by mutex_
};

class Server {
 public:
  explicit Server(ShardEndpoint& endpoint, const StorageServiceOptions& options = {}, int port = 0)
      : service_(make_storage_service(endpoint, options)) {
    grpc::ServerBuilder builder;
    configure_storage_server(builder);
    builder.AddListeningPort(str_cat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
  }
  ~Server() { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return str_cat("127.0.0.1:", port_); }
  int port() const { return port_; }

 private:
  std::unique_ptr<grpc::Service> service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

ShardRequest request_of(ShardOperation operation, std::uint64_t epoch = 1) {
  return {.cluster_id = "simulated",
          .map_epoch = epoch,
          .target_id = "t0",
          .operation = std::move(operation),
          .deadline = seconds(20)};
}

class GrpcTest : public ::testing::Test {
 protected:
  SharedNodes nodes_{simulated_map(10, 2, 1, 113920)};
  Replies replies_;
};

TEST_F(GrpcTest, ManyRequestsOfManyThreadsAreAnsweredOnceEach) {
  const Server server(nodes_);
  const auto transport = make_grpc_transport();
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kEach = 500;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < kEach; ++i) {
        // The epoch is that of a batch: mixing epochs splits batches.
        transport->send(
            server.address(),
            request_of(QueryKeys{{key_of(static_cast<std::uint32_t>(i))}, {}}, 1 + (i + t) % 2),
            replies_.next());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(replies_.count_of(ShardResult::kOk, kThreads * kEach), kThreads * kEach);
}

TEST_F(GrpcTest, ANodeThatIsNotThereIsUnavailableAndFoundWhenItComes) {
  int port = 0;
  {
    const Server gone(nodes_);
    port = gone.port();
  }
  const auto transport = make_grpc_transport();
  const std::string address = str_cat("127.0.0.1:", port);
  transport->send(address, request_of(ReadShard{key_of(1)}), replies_.next());
  const ShardReply refused = replies_.wait_for(1)[0];
  EXPECT_EQ(refused.result, ShardResult::kUnavailable);
  EXPECT_NE(refused.message.find(address), std::string::npos) << refused.message;
  // During the backoff nobody waits for a connection.
  transport->send(address, request_of(ReadShard{key_of(1)}), replies_.next());
  EXPECT_EQ(replies_.wait_for(1)[0].result, ShardResult::kUnavailable);

  const Server server(nodes_, {}, port);
  ShardResult result = ShardResult::kUnavailable;
  for (int i = 0; i < 200 && result == ShardResult::kUnavailable; ++i) {
    std::this_thread::sleep_for(milliseconds(50));
    transport->send(address, request_of(ReadShard{key_of(1)}), replies_.next());
    result = replies_.wait_for(1)[0].result;
  }
  EXPECT_EQ(result, ShardResult::kNotFound);
}

TEST_F(GrpcTest, WhenANodeDiesEverythingOutstandingIsAnswered) {
  HoldingEndpoint holding;
  const auto transport = make_grpc_transport();
  {
    const Server server(holding);
    for (int i = 0; i < 100; ++i)
      transport->send(server.address(), request_of(ReadShard{key_of(1)}), replies_.next());
    holding.wait_for(100);
  }
  EXPECT_EQ(replies_.count_of(ShardResult::kUnavailable, 100), 100U);
  holding.answer_all();  // far too late, to nobody
}

TEST_F(GrpcTest, DestructionAnswersWhatIsLeft) {
  HoldingEndpoint holding;
  const Server server(holding);
  auto transport = make_grpc_transport();
  for (int i = 0; i < 50; ++i)
    transport->send(server.address(), request_of(ReadShard{key_of(1)}), replies_.next());
  holding.wait_for(50);
  transport.reset();
  EXPECT_EQ(replies_.count_of(ShardResult::kUnavailable, 50), 50U);
  holding.answer_all();
}

TEST_F(GrpcTest, QueuesAreBoundedOnBothEnds) {
  HoldingEndpoint holding;
  const Server server(holding, {.max_requests_in_flight = 10});
  {
    const auto transport = make_grpc_transport();
    for (int i = 0; i < 30; ++i)
      transport->send(server.address(), request_of(ReadShard{key_of(1)}), replies_.next());
    EXPECT_EQ(replies_.count_of(ShardResult::kBusy, 20), 20U);
    holding.answer_all();
    EXPECT_EQ(replies_.count_of(ShardResult::kOk, 10), 10U);
  }
  GrpcTransportOptions options;
  options.max_outbox_bytes = 1000;
  const auto transport = make_grpc_transport(options);
  transport->send(server.address(), request_of(WriteShard{std::vector<std::byte>(2000)}),
                  replies_.next());
  EXPECT_EQ(replies_.wait_for(1)[0].result, ShardResult::kBusy);
}

TEST_F(GrpcTest, RepliesThatWaitAreBounded) {
  const Server server(nodes_, {.max_waiting_reply_bytes = 1000});
  const auto transport = make_grpc_transport();
  transport->send(server.address(), request_of(QueryKeys{std::vector<BlockKey>(4000), {}}),
                  replies_.next());
  EXPECT_EQ(replies_.wait_for(1)[0].result, ShardResult::kBusy);
}

TEST_F(GrpcTest, ARequestWhoseTimePassesInTheOutboxIsNotSent) {
  HoldingEndpoint holding;
  const Server server(holding);
  const auto transport = make_grpc_transport();
  ShardRequest request = request_of(ReadShard{key_of(1)});
  request.deadline = milliseconds(0);
  transport->send(server.address(), std::move(request), replies_.next());
  EXPECT_EQ(replies_.wait_for(1)[0].result, ShardResult::kOverdue);
}

/// A stream by hand: what a client of another version, or a broken one, may send.
class RawStream {
 public:
  explicit RawStream(const std::string& address)
      : stub_(proto::v1::Storage::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        stream_(stub_->Exchange(&context_)) {}
  void write(const proto::v1::ShardRequestBatch& batch) { stream_->Write(batch); }
  proto::v1::ShardReplyBatch read() {
    proto::v1::ShardReplyBatch batch;
    EXPECT_TRUE(stream_->Read(&batch));
    return batch;
  }
  grpc::Status finish() {
    stream_->WritesDone();
    proto::v1::ShardReplyBatch batch;
    while (stream_->Read(&batch)) continue;
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<proto::v1::Storage::Stub> stub_;
  std::unique_ptr<
      grpc::ClientReaderWriter<proto::v1::ShardRequestBatch, proto::v1::ShardReplyBatch>>
      stream_;
};

TEST_F(GrpcTest, AnotherVersionIsRefusedByName) {
  const Server server(nodes_);
  RawStream stream(server.address());
  proto::v1::ShardRequestBatch batch;
  begin_batch(request_of(ReadShard{}), batch);
  batch.set_protocol_version(99);
  stream.write(batch);
  const grpc::Status status = stream.finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(),
            str_cat("the client speaks protocol version 99, this storage node ", kProtocolVersion));
}

TEST_F(GrpcTest, WhatCannotBeReadIsInvalidAndTheRestIsServed) {
  const Server server(nodes_);
  RawStream stream(server.address());
  proto::v1::ShardRequestBatch batch;
  begin_batch(request_of(ReadShard{}), batch);
  auto* bad = batch.add_items();
  bad->set_request_id(1);
  bad->set_read_key("short");
  encode_request(request_of(ReadShard{key_of(1)}), 2, seconds(1), *batch.add_items());
  stream.write(batch);
  std::map<std::uint64_t, std::uint32_t> results;
  while (results.size() < 2) {
    const proto::v1::ShardReplyBatch replies = stream.read();
    for (const auto& item : replies.items()) results[item.request_id()] = item.result();
  }
  EXPECT_EQ(results[1], static_cast<std::uint32_t>(ShardResult::kInvalid));
  EXPECT_EQ(results[2], static_cast<std::uint32_t>(ShardResult::kNotFound));
  EXPECT_TRUE(stream.finish().ok());
}

// Everything together: a store over real streams to twelve targets behind one server.
TEST_F(GrpcTest, AStoreReadsAndWritesOverStreams) {
  const Server server(nodes_);
  StorageMap map = *simulated_map(10, 2, 1, 113920);
  for (StorageNodeEntry& node : map.nodes) node.address = server.address();
  const auto cell = MapCell::open("");
  ASSERT_TRUE(cell.ok());
  ASSERT_TRUE((*cell)->offer(map).ok());
  const auto transport = make_grpc_transport();
  Registry registry;
  BlockStore store({.seed = 5, .registry = &registry}, *transport, **cell);

  constexpr std::uint32_t kBlocks = 40;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint32_t finished = 0;
  const auto count = [&] {
    std::lock_guard lock(mutex);
    ++finished;
    changed.notify_all();
  };
  const auto wait = [&] {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, seconds(60), [&] { return finished == kBlocks; }));
    finished = 0;
  };
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    store.write({.key = key_of(i), .bytes = block_of(i, 113920), .depth = i}, seconds(30),
                [&](WriteOutcome outcome) {
                  EXPECT_EQ(outcome, WriteOutcome::kStored);
                  count();
                });
  }
  wait();
  nodes_.set_fault("t2", TargetFault::kFlipBit);
  nodes_.set_fault("t9", TargetFault::kBusy);
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    store.read(key_of(i), seconds(30), [&, i](const ReadResult& result) {
      EXPECT_EQ(result.block, block_of(i, 113920));
      EXPECT_EQ(result.depth, i);
      count();
    });
  }
  wait();
  std::vector<BlockKey> keys;
  for (std::uint32_t i = 0; i < kBlocks + 5; ++i) keys.push_back(key_of(i));
  store.query(keys, seconds(1), seconds(30), [&](std::vector<bool> present) {
    for (std::uint32_t i = 0; i < kBlocks + 5; ++i) EXPECT_EQ(present[i], i < kBlocks);
    std::lock_guard lock(mutex);
    finished = kBlocks;
    changed.notify_all();
  });
  wait();
}

}  // namespace
}  // namespace millrace::storage::store
