// Entrypoints that keep the directory together, each with its service and its client.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <random>
#include <thread>

#include "api/proto/swa.grpc.pb.h"
#include "common/str_cat.h"
#include "common/types.h"
#include "storage/swa/directory_client.h"
#include "storage/swa/directory_ring.h"
#include "storage/swa/directory_service.h"

namespace millrace::storage::swa {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Places = std::vector<std::optional<WindowLocation>>;

constexpr milliseconds kLong{10000};

BlockKey key_of(unsigned number) {
  std::mt19937_64 random(number);
  BlockKey key;
  for (std::uint8_t& byte : key.bytes) byte = static_cast<std::uint8_t>(random());
  return key;
}

std::vector<BlockKey> keys_from(unsigned first, unsigned count) {
  std::vector<BlockKey> keys;
  keys.reserve(count);
  for (unsigned i = 0; i < count; ++i) keys.push_back(key_of(first + i));
  return keys;
}

WindowLocation location_of(unsigned number, std::uint64_t incarnation = 1) {
  return {.host_id = "host",
          .address = "10.1.2.3:4000",
          .incarnation = incarnation,
          .slot = number,
          .generation = number + 1,
          .bytes = 1'500'000};
}

std::vector<DirectoryEntry> entries_from(unsigned first, unsigned count) {
  std::vector<DirectoryEntry> entries;
  entries.reserve(count);
  for (unsigned i = 0; i < count; ++i)
    entries.push_back({key_of(first + i), location_of(first + i)});
  return entries;
}

Places get(DirectoryClient& client, std::vector<BlockKey> keys, milliseconds timeout = kLong) {
  std::promise<Places> promise;
  auto future = promise.get_future();
  client.get(std::move(keys), timeout,
             [&](Places places) { promise.set_value(std::move(places)); });
  EXPECT_EQ(future.wait_for(kLong), std::future_status::ready);
  return future.get();
}

std::size_t known(const Places& places) {
  return static_cast<std::size_t>(
      std::count_if(places.begin(), places.end(), [](const auto& at) { return at.has_value(); }));
}

/// A socket that takes connections and never answers.
class SilentServer {
 public:
  SilentServer() {
    service_.emplace();
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&*service_);
    server_ = builder.BuildAndStart();
  }
  ~SilentServer() {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
  std::string address() const { return str_cat("127.0.0.1:", port_); }

 private:
  /// Answers when the caller has gone.
  class Waiter final : public grpc::ServerUnaryReactor {
   public:
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }
  };
  struct Service final : proto::v1::KvDirectory::CallbackService {
    grpc::ServerUnaryReactor* Put(grpc::CallbackServerContext*, const proto::v1::PutKvWindows*,
                                  proto::v1::PutKvWindowsReply*) override {
      return new Waiter;
    }
    grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext*, const proto::v1::GetKvWindows*,
                                  proto::v1::KvWindowPlaces*) override {
      return new Waiter;
    }
  };
  std::optional<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

/// One entrypoint.
struct Entrypoint {
  explicit Entrypoint(std::string name, DirectoryClientOptions options = {}) : id(std::move(name)) {
    auto started = DirectoryService::start({}, registry);
    EXPECT_TRUE(started.ok()) << started.status();
    service = *std::move(started);
    options.own_id = id;
    client = DirectoryClient::create(options, *service, registry);
  }
  DirectoryMember member() const { return {id, service->address(), 1}; }
  bool has_metric(std::string_view line) const {
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    while (registry.exposition().find(line) == std::string::npos) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return true;
  }

  std::string id;
  Registry registry;
  std::unique_ptr<DirectoryService> service;
  std::unique_ptr<DirectoryClient> client;
};

void introduce(std::initializer_list<Entrypoint*> entrypoints) {
  std::vector<DirectoryMember> members;
  members.reserve(entrypoints.size());
  for (const Entrypoint* entrypoint : entrypoints) members.push_back(entrypoint->member());
  for (Entrypoint* entrypoint : entrypoints) entrypoint->client->set_members(members);
}

/// Looks until so many keys are known, since puts return before they are done.
Places get_all(DirectoryClient& client, const std::vector<BlockKey>& keys, std::size_t count) {
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  Places places = get(client, keys);
  while (known(places) < count && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(10));
    places = get(client, keys);
  }
  EXPECT_EQ(known(places), count);
  return places;
}

TEST(Directory, WhatOneEntrypointPutsAllOthersFind) {
  Entrypoint a("a");
  Entrypoint b("b");
  Entrypoint c("c");
  introduce({&a, &b, &c});
  a.client->put(entries_from(0, 100));
  b.client->put(entries_from(100, 100));
  for (Entrypoint* entrypoint : {&a, &b, &c}) {
    const Places places = get_all(*entrypoint->client, keys_from(0, 200), 200);
    for (unsigned i = 0; i < 200; ++i) EXPECT_EQ(places[i], location_of(i));
    EXPECT_EQ(known(get(*entrypoint->client, keys_from(1000, 50))), 0u);
  }
  // Each has its share, not a copy.
  for (Entrypoint* entrypoint : {&a, &b, &c}) {
    const std::size_t own = known(entrypoint->service->get(keys_from(0, 200)));
    EXPECT_GT(own, 30u);
    EXPECT_LT(own, 110u);
  }
  EXPECT_TRUE(a.has_metric("millrace_swa_directory_puts_total{outcome=\"stored\"}"));
}

TEST(Directory, AnEntrypointAloneNeedsNoNetwork) {
  Entrypoint a("a");
  a.client->set_members({{"a", "unreachable.invalid:1", 1}});
  a.client->put(entries_from(0, 10));
  bool was_called = false;
  a.client->get(keys_from(0, 12), milliseconds(0), [&](const Places& places) {
    was_called = true;
    EXPECT_EQ(known(places), 10u);
  });
  EXPECT_TRUE(was_called);
}

TEST(Directory, WithoutMembersNothingIsKnown) {
  Entrypoint a("a");
  a.client->put(entries_from(0, 10));
  EXPECT_EQ(known(get(*a.client, keys_from(0, 10))), 0u);
  EXPECT_TRUE(a.has_metric("millrace_swa_directory_lost_puts_total{reason=\"no_members\"} 10"));
  EXPECT_TRUE(a.has_metric("millrace_swa_directory_lookups_total{outcome=\"no_members\"} 10"));
  EXPECT_TRUE(get(*a.client, {}).empty());
}

TEST(Directory, AnEntrypointThatDiesTakesItsShareAndNothingElse) {
  Entrypoint a("a");
  auto b = std::make_unique<Entrypoint>("b");
  introduce({&a, b.get()});
  a.client->put(entries_from(0, 100));
  get_all(*a.client, keys_from(0, 100), 100);
  const std::size_t own = known(a.service->get(keys_from(0, 100)));
  b.reset();
  EXPECT_EQ(known(get(*a.client, keys_from(0, 100))), own);
  a.client->put(entries_from(0, 100));
  EXPECT_TRUE(a.has_metric(
      str_cat("millrace_swa_directory_lost_puts_total{reason=\"unreachable\"} ", 100 - own)));
  EXPECT_TRUE(a.has_metric(
      str_cat("millrace_swa_directory_lookups_total{outcome=\"unreachable\"} ", 100 - own)));
  // When the view has noticed, the directory is whole again for what is new.
  a.client->set_members({a.member()});
  a.client->put(entries_from(200, 100));
  EXPECT_EQ(known(get(*a.client, keys_from(200, 100))), 100u);
}

TEST(Directory, OneThatJoinsMovesOnlyItsShare) {
  Entrypoint a("a");
  Entrypoint b("b");
  Entrypoint c("c");
  introduce({&a, &b});
  a.client->put(entries_from(0, 200));
  get_all(*a.client, keys_from(0, 200), 200);
  introduce({&a, &b, &c});
  const DirectoryRing ring({"a", "b", "c"});
  const Places places = get(*a.client, keys_from(0, 200));
  for (unsigned i = 0; i < 200; ++i) {
    EXPECT_EQ(places[i].has_value(), ring.owner_of(key_of(i)) != "c");
  }
}

TEST(Directory, AnEntrypointThatIsStartedAnewIsReachedAtItsNewAddress) {
  Entrypoint a("a");
  auto b = std::make_unique<Entrypoint>("b");
  introduce({&a, b.get()});
  a.client->put(entries_from(0, 50));
  get_all(*a.client, keys_from(0, 50), 50);
  b.reset();
  Entrypoint again("b");
  a.client->set_members({a.member(), {"b", again.service->address(), 2}});
  a.client->put(entries_from(0, 50));
  get_all(*a.client, keys_from(0, 50), 50);
}

TEST(Directory, OneThatDoesNotAnswerCostsTheDeadlineAndNoMore) {
  SilentServer silent;
  Entrypoint a("a", {.own_id = "", .max_waiting_entries = 20, .put_timeout = milliseconds(50)});
  a.client->set_members({a.member(), {"silent", silent.address(), 1}});
  a.client->put(entries_from(0, 100));  // one batch under way, the rest waits or is dropped
  const auto start = std::chrono::steady_clock::now();
  const Places places = get(*a.client, keys_from(0, 100), milliseconds(30));
  const auto time = std::chrono::steady_clock::now() - start;
  EXPECT_GE(time, milliseconds(30));
  EXPECT_LT(time, milliseconds(2000));
  EXPECT_EQ(known(places), known(a.service->get(keys_from(0, 100))));
  EXPECT_TRUE(a.has_metric("millrace_swa_directory_lost_puts_total{reason=\"deadline\"} 20"));
  EXPECT_FALSE(a.registry.exposition().find("lost_puts_total{reason=\"full\"} 0") !=
               std::string::npos);
}

TEST(Directory, LookupsAreBounded) {
  SilentServer silent;
  Entrypoint a("a", {.own_id = "", .max_lookups = 2});
  a.client->set_members({{"silent", silent.address(), 1}});
  std::vector<std::future<Places>> waiting;
  for (unsigned i = 0; i < 3; ++i) {
    auto promise = std::make_shared<std::promise<Places>>();
    waiting.push_back(promise->get_future());
    a.client->get({key_of(i)}, kLong,
                  [promise](Places places) { promise->set_value(std::move(places)); });
  }
  EXPECT_EQ(waiting[2].wait_for(milliseconds(0)), std::future_status::ready);
  EXPECT_TRUE(a.has_metric("millrace_swa_directory_lookups_total{outcome=\"busy\"} 1"));
  a.client.reset();  // ends what is under way
  for (auto& future : waiting) {
    ASSERT_EQ(future.wait_for(milliseconds(0)), std::future_status::ready);
    EXPECT_EQ(known(future.get()), 0u);
  }
}

TEST(Directory, ManyAskAndPutAtATimeWhileMembersChange) {
  Entrypoint a("a");
  Entrypoint b("b");
  introduce({&a, &b});
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      Entrypoint& entrypoint = thread % 2 == 0 ? a : b;
      for (unsigned i = 0; i < 50; ++i) {
        entrypoint.client->put(entries_from(thread * 1000 + i, 2));
        const Places places = get(*entrypoint.client, keys_from(thread * 1000 + i, 2));
        for (unsigned j = 0; j < 2; ++j) {
          if (places[j]) {
            EXPECT_EQ(*places[j], location_of(thread * 1000 + i + j));
          }
        }
        if (i % 10 == 0) entrypoint.client->set_members({a.member(), b.member()});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Directory, RefusesWhatItCannotRead) {
  Entrypoint a("a");
  const auto stub = proto::v1::KvDirectory::NewStub(
      grpc::CreateChannel(a.service->address(), grpc::InsecureChannelCredentials()));
  const auto put = [&](const proto::v1::PutKvWindows& request) {
    grpc::ClientContext context;
    proto::v1::PutKvWindowsReply reply;
    return stub->Put(&context, request, &reply);
  };
  const auto get_status = [&](const proto::v1::GetKvWindows& request) {
    grpc::ClientContext context;
    proto::v1::KvWindowPlaces reply;
    return stub->Get(&context, request, &reply);
  };
  proto::v1::PutKvWindows entries;
  EXPECT_THAT(put(entries).error_message(),
              HasSubstr(str_cat("protocol 0, this entrypoint ", kProtocolVersion)));
  entries.set_protocol_version(kProtocolVersion);
  entries.add_entries()->set_key("short");
  EXPECT_THAT(put(entries).error_message(), HasSubstr("entries[0].key has 5 bytes, not 32"));
  for (std::size_t i = 0; i < kMaxPutEntries; ++i) entries.add_entries();
  EXPECT_THAT(put(entries).error_message(), HasSubstr("1025 elements; 1024 are allowed"));
  proto::v1::GetKvWindows keys;
  EXPECT_EQ(get_status(keys).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  keys.set_protocol_version(kProtocolVersion);
  keys.set_keys(std::string(33, 'k'));
  EXPECT_THAT(get_status(keys).error_message(), HasSubstr("keys has 33 bytes"));
  keys.set_keys(std::string((kMaxGetKeys + 1) * 32, 'k'));
  EXPECT_EQ(get_status(keys).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Registry registry;
  EXPECT_EQ(
      DirectoryService::start({.listen_address = a.service->address()}, registry).status().code(),
      absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace millrace::storage::swa
