// A prefill and a decode worker in one process, over real sockets.

#include "dataplane/worker/worker_server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "api/proto/engine.grpc.pb.h"
#include "dataplane/transfer/export_table.h"
#include "dataplane/worker/test_engine.h"

namespace millrace::dataplane::worker {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr TokenId kEos = 7;

transfer::PeerIdentity test_identity() {
  return {.model_id = "nano", .artifact_digest = std::string(32, 'd')};
}

/// One worker with its engine, metrics and log.
class TestWorker {
 public:
  struct Options {
    Role role = Role::kPrefill;
    std::string host_id = "host-a";
    scheduler::SchedulerLimits limits{.kv_blocks = 64};
    transfer::ExportLimits exports{};
  };

  explicit TestWorker(const Options& options)
      : controls(std::make_shared<TestEngineControls>()),
        log(Logger::to_sink("worker", LogLevel::kError, [](std::string_view line) {
          ADD_FAILURE() << "unexpected error in the log: " << line;
        })) {
    config.role = options.role;
    config.worker_id =
        str_cat(options.role == Role::kPrefill ? "p-" : "d-", ::getpid(), "-", ++made_);
    config.host_id = options.host_id;
    config.identity = test_identity();
    config.eos_tokens = {kEos};
    config.limits = options.limits;
    config.exports = options.exports;
    auto started = WorkerServer::start(
        config, std::make_unique<TestEngine>(controls, options.limits.kv_blocks), registry, log);
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
  }

  double metric(const std::string& name) const {
    const std::string text = registry.exposition();
    const std::size_t at = text.find("\n" + name + " ");
    EXPECT_NE(at, std::string::npos) << name;
    return std::stod(text.substr(at + name.size() + 2));
  }

  /// The gauges that must come back to zero.
  bool has_nothing_left() const {
    return controls->sequences == 0 && metric("millrace_requests_running") == 0 &&
           metric("millrace_requests_waiting") == 0 && metric("millrace_kv_blocks_used") == 0 &&
           metric("millrace_kv_exports_pinned") == 0;
  }

  std::shared_ptr<TestEngineControls> controls;
  Registry registry;
  Logger log;
  WorkerConfig config;
  std::unique_ptr<WorkerServer> server;

 private:
  static inline std::atomic<int> made_{0};
};

bool within(std::chrono::milliseconds timeout, const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

/// An entrypoint's stream to one worker: a thread collects what comes.
class Stream {
 public:
  explicit Stream(const std::string& address, bool has_hello = true)
      : channel_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())),
        stub_(proto::v1::Engine::NewStub(channel_)),
        stream_(stub_->Connect(&context_)) {
    if (has_hello) {
      proto::v1::EngineCommand command;
      set_identity(*command.mutable_hello()->mutable_identity(), test_identity());
      command.mutable_hello()->set_entrypoint_id("e0");
      send(command);
    }
    reader_ = std::thread([this] { read(); });
  }

  ~Stream() {
    context_.TryCancel();
    reader_.join();
  }

  static void set_identity(proto::v1::Identity& wire, const transfer::PeerIdentity& identity) {
    wire.set_protocol_version(identity.protocol_version);
    wire.set_model_id(identity.model_id);
    wire.set_artifact_digest(identity.artifact_digest);
  }

  void send(const proto::v1::EngineCommand& command) {
    std::lock_guard lock(send_mutex_);
    stream_->Write(command);
  }
  void hang_up() { context_.TryCancel(); }
  void close() { stream_->WritesDone(); }

  /// Waits for the next event of a request.
  std::optional<proto::v1::EngineEvent> next(const std::string& request_id) {
    std::unique_lock lock(mutex_);
    auto& queue = events_[request_id];
    changed_.wait_for(lock, 10s, [&] { return !queue.empty() || is_over_; });
    if (queue.empty()) return std::nullopt;
    proto::v1::EngineEvent event = queue.front();
    queue.pop_front();
    return event;
  }

  grpc::Status wait_for_end() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 10s, [&] { return is_over_; }));
    return end_;
  }

  struct Seen {
    int messages = 0;
    proto::v1::EngineLoad load;
    std::chrono::nanoseconds longest_silence{0};
  };
  Seen seen() {
    std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  void read() {
    proto::v1::EngineEvents message;
    auto last = std::chrono::steady_clock::now();
    while (stream_->Read(&message)) {
      const auto now = std::chrono::steady_clock::now();
      std::lock_guard lock(mutex_);
      if (seen_.messages > 0) seen_.longest_silence = std::max(seen_.longest_silence, now - last);
      last = now;
      ++seen_.messages;
      EXPECT_TRUE(message.has_load());
      seen_.load = message.load();
      for (const auto& event : message.events()) {
        events_[event.key().request_id()].push_back(event);
      }
      changed_.notify_all();
    }
    const grpc::Status end = stream_->Finish();
    std::lock_guard lock(mutex_);
    end_ = end;
    is_over_ = true;
    changed_.notify_all();
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<proto::v1::Engine::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::v1::EngineCommand, proto::v1::EngineEvents>>
      stream_;
  std::mutex send_mutex_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::deque<proto::v1::EngineEvent>> events_;
  Seen seen_;
  bool is_over_ = false;
  grpc::Status end_;
  std::thread reader_;
};

std::vector<TokenId> prompt_of(std::size_t count) {
  std::vector<TokenId> tokens(count);
  for (std::size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<TokenId>((i * 31 + count) % TestEngine::kVocab);
  }
  return tokens;
}

void set_sampling(proto::v1::SamplingState& wire, int max_new_tokens, double temperature = 0) {
  wire.set_temperature(temperature);
  wire.set_top_p(1);
  wire.set_repetition_penalty(1);
  wire.set_seed(17);
  wire.set_ignore_eos(true);
  wire.set_max_new_tokens(static_cast<std::uint32_t>(max_new_tokens));
}

proto::v1::EngineCommand start_prefill(const std::string& id, const std::vector<TokenId>& tokens,
                                       int max_new_tokens, double temperature = 0) {
  proto::v1::EngineCommand command;
  auto& start = *command.mutable_start_prefill();
  start.mutable_key()->set_request_id(id);
  start.mutable_tokens()->Add(tokens.begin(), tokens.end());
  start.set_prompt_tokens(static_cast<std::uint32_t>(tokens.size()));
  set_sampling(*start.mutable_sampling(), max_new_tokens, temperature);
  start.set_deadline_ms(60'000);
  return command;
}

proto::v1::EngineCommand start_decode(const proto::v1::EngineCommand& prefill,
                                      const proto::v1::Prefilled& first) {
  proto::v1::EngineCommand command;
  auto& start = *command.mutable_start_decode();
  const auto& before = prefill.start_prefill();
  *start.mutable_key() = before.key();
  *start.mutable_tokens() = before.tokens();
  start.add_tokens(first.token().token());
  start.set_prompt_tokens(before.prompt_tokens());
  *start.mutable_sampling() = before.sampling();
  *start.mutable_handover() = first.handover();
  start.set_deadline_ms(60'000);
  return command;
}

proto::v1::EngineCommand cancel(const std::string& id, std::uint64_t export_id = 0) {
  proto::v1::EngineCommand command;
  command.mutable_cancel()->mutable_key()->set_request_id(id);
  command.mutable_cancel()->set_export_id(export_id);
  return command;
}

/// Collects a text to its end from both streams.
std::vector<TokenId> generate(Stream& prefill, Stream& decode,
                              const proto::v1::EngineCommand& command) {
  const std::string id = command.start_prefill().key().request_id();
  std::vector<TokenId> text;
  prefill.send(command);
  const auto first = prefill.next(id);
  if (!first || !first->has_prefilled()) {
    ADD_FAILURE() << (first ? first->ShortDebugString() : "no event");
    return text;
  }
  text.push_back(first->prefilled().token().token());
  if (first->prefilled().finish() != proto::v1::FINISH_REASON_NONE) return text;
  decode.send(start_decode(command, first->prefilled()));
  for (;;) {
    const auto event = decode.next(id);
    if (!event || !event->has_sampled()) {
      ADD_FAILURE() << (event ? event->ShortDebugString() : "no event");
      return text;
    }
    for (const auto& token : event->sampled().tokens()) text.push_back(token.token());
    if (event->sampled().finish() != proto::v1::FINISH_REASON_NONE) return text;
  }
}

class TwoWorkers : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Hosts, TwoWorkers, ::testing::Values("host-a", "host-b"));

TEST_P(TwoWorkers, WriteTheTextThatOneProcessWould) {
  TestWorker prefill({.role = Role::kPrefill});
  TestWorker decode({.role = Role::kDecode, .host_id = GetParam()});
  Stream to_prefill(prefill.server->address());
  Stream to_decode(decode.server->address());
  for (const double temperature : {0.0, 0.9}) {
    for (const std::size_t prompt_tokens : {1u, 127u, 700u}) {
      const std::vector<TokenId> prompt = prompt_of(prompt_tokens);
      sampling::SamplingParams params;
      params.temperature = temperature;
      params.seed = 17;
      params.max_new_tokens = 30;
      EXPECT_EQ(generate(to_prefill, to_decode,
                         start_prefill(str_cat("r", prompt_tokens, "-", temperature), prompt, 30,
                                       temperature)),
                expected_text(prompt, static_cast<int>(prompt_tokens), params, {}));
    }
  }
  EXPECT_TRUE(within(1s, [&] { return prefill.has_nothing_left() && decode.has_nothing_left(); }));
  const bool is_shared = GetParam() == "host-a";
  EXPECT_EQ(decode.metric("millrace_kv_imports_total{path=\"shared_memory\"}"), is_shared ? 6 : 0);
  EXPECT_EQ(decode.metric("millrace_kv_imports_total{path=\"stream\"}"), is_shared ? 0 : 6);
}

TEST(WorkerServer, ManyRequestsOverOneStreamEndWithTheirOwnTexts) {
  TestWorker prefill({.role = Role::kPrefill});
  TestWorker decode({.role = Role::kDecode, .limits = {.max_sequences = 8, .kv_blocks = 32}});
  Stream to_prefill(prefill.server->address());
  Stream to_decode(decode.server->address());
  std::vector<std::thread> clients;
  for (int client = 0; client < 16; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 5; ++i) {
        const auto prompt = prompt_of(static_cast<std::size_t>(1 + client * 17 + i));
        sampling::SamplingParams params;
        params.temperature = 0;
        params.max_new_tokens = 20;
        EXPECT_EQ(generate(to_prefill, to_decode,
                           start_prefill(str_cat("r", client, "-", i), prompt, 20)),
                  expected_text(prompt, static_cast<int>(prompt.size()), params, {}));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(within(1s, [&] { return prefill.has_nothing_left() && decode.has_nothing_left(); }));
}

TEST(WorkerServer, APromptOf32KTokensFitsAMessage) {
  TestWorker prefill({.role = Role::kPrefill});
  Stream stream(prefill.server->address());
  // Longer than the test engine's context: the answer shows that it was read to the end.
  stream.send(start_prefill("r", std::vector<TokenId>(32 * 1024, 49), 1));
  const auto event = stream.next("r");
  ASSERT_TRUE(event && event->has_failed());
  EXPECT_THAT(event->failed().message(), HasSubstr("32768"));
}

TEST(WorkerServer, AnotherIdentityIsRefusedWithBothValues) {
  TestWorker prefill({.role = Role::kPrefill});
  Stream stream(prefill.server->address(), false);
  proto::v1::EngineCommand hello;
  transfer::PeerIdentity other = test_identity();
  other.model_id = "other-model";
  Stream::set_identity(*hello.mutable_hello()->mutable_identity(), other);
  stream.send(hello);
  const grpc::Status end = stream.wait_for_end();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(end.error_message(), AllOf(HasSubstr("other-model"), HasSubstr("nano")));
}

TEST(WorkerServer, AStreamThatDoesNotGreetIsRefused) {
  TestWorker prefill({.role = Role::kPrefill});
  Stream stream(prefill.server->address(), false);
  stream.send(start_prefill("r", prompt_of(3), 1));
  EXPECT_EQ(stream.wait_for_end().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(within(1s, [&] { return prefill.metric("millrace_streams_open") == 0; }));
}

TEST(WorkerServer, AMalformedRequestFailsAloneAndAnEmptyCommandEndsTheStream) {
  TestWorker prefill({.role = Role::kPrefill});
  Stream stream(prefill.server->address());
  auto malformed = start_prefill("bad", prompt_of(3), 1);
  malformed.mutable_start_prefill()->mutable_sampling()->set_top_k(4'000'000'000u);
  stream.send(malformed);
  const auto event = stream.next("bad");
  ASSERT_TRUE(event && event->has_failed());
  EXPECT_EQ(event->failed().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(event->failed().message(), HasSubstr("top_k"));
  stream.send(start_prefill("good", prompt_of(3), 1));
  EXPECT_TRUE(stream.next("good")->has_prefilled());
  EXPECT_EQ(stream.seen().load.started_requests(), 2u);
  stream.send({});
  EXPECT_EQ(stream.wait_for_end().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(WorkerServer, TheLoadComesAtLeastEvery200Ms) {
  TestWorker prefill({.role = Role::kPrefill});
  prefill.controls->step_ms = 700;  // a long step does not silence the worker
  Stream stream(prefill.server->address());
  ASSERT_TRUE(within(1s, [&] { return stream.seen().messages > 0; }));
  stream.send(start_prefill("r", prompt_of(3), 1));
  std::this_thread::sleep_for(900ms);
  const Stream::Seen seen = stream.seen();
  EXPECT_GE(seen.messages, 5);
  EXPECT_LT(seen.longest_silence, 250ms);  // 200 ms and what a busy machine adds
  EXPECT_EQ(seen.load.kv_blocks_total(), 64u);
}

TEST(WorkerServer, CancelStopsARunningRequestEverywhere) {
  TestWorker prefill({.role = Role::kPrefill});
  TestWorker decode({.role = Role::kDecode});
  Stream to_prefill(prefill.server->address());
  Stream to_decode(decode.server->address());
  decode.controls->step_ms = 5;
  const auto command = start_prefill("r", prompt_of(20), 3000);
  to_prefill.send(command);
  const auto first = to_prefill.next("r");
  ASSERT_TRUE(first && first->has_prefilled());
  to_decode.send(start_decode(command, first->prefilled()));
  ASSERT_TRUE(to_decode.next("r").has_value());
  to_decode.send(cancel("r"));
  EXPECT_TRUE(within(1s, [&] { return decode.has_nothing_left() && prefill.has_nothing_left(); }));
  EXPECT_EQ(decode.metric("millrace_requests_cancelled_total"), 1);
}

TEST(WorkerServer, CancelDropsAHandoverThatNobodyFetches) {
  TestWorker prefill({.role = Role::kPrefill});
  Stream stream(prefill.server->address());
  stream.send(start_prefill("r", prompt_of(20), 30));
  const auto first = stream.next("r");
  ASSERT_TRUE(first && first->has_prefilled());
  EXPECT_TRUE(within(1s, [&] { return prefill.metric("millrace_kv_exports_pinned") == 1; }));
  stream.send(cancel("r", first->prefilled().handover().export_id()));
  EXPECT_TRUE(within(1s, [&] { return prefill.has_nothing_left(); }));
}

// Half the clients hang up while they stream, half while they wait for a sequence.
TEST(WorkerServer, AStreamThatBreaksTakesItsRequestsAlong) {
  TestWorker prefill({.role = Role::kPrefill});
  TestWorker decode({.role = Role::kDecode, .limits = {.max_sequences = 2, .kv_blocks = 64}});
  decode.controls->step_ms = 5;
  Stream other(prefill.server->address());
  {
    Stream to_prefill(prefill.server->address());
    Stream to_decode(decode.server->address());
    for (int i = 0; i < 4; ++i) {
      const auto command = start_prefill(str_cat("r", i), prompt_of(20), 1000);
      to_prefill.send(command);
      const auto first = to_prefill.next(str_cat("r", i));
      ASSERT_TRUE(first && first->has_prefilled());
      to_decode.send(start_decode(command, first->prefilled()));
    }
    to_prefill.send(start_prefill("unfetched", prompt_of(20), 10));
    ASSERT_TRUE(to_prefill.next("unfetched").has_value());
    ASSERT_TRUE(to_decode.next("r0").has_value());
    EXPECT_TRUE(within(1s, [&] { return decode.metric("millrace_requests_running") == 2; }));
    EXPECT_EQ(decode.metric("millrace_requests_waiting"), 2);
    to_prefill.hang_up();
    to_decode.hang_up();
    EXPECT_TRUE(
        within(1s, [&] { return decode.has_nothing_left() && prefill.has_nothing_left(); }));
  }
  EXPECT_TRUE(within(1s, [&] { return decode.metric("millrace_streams_open") == 0; }));
  EXPECT_EQ(prefill.metric("millrace_streams_open"), 1);
  other.send(start_prefill("still", prompt_of(3), 1));
  EXPECT_TRUE(other.next("still").has_value());
}

TEST(WorkerServer, ClosingTheStreamInOrderEndsIt) {
  TestWorker prefill({.role = Role::kPrefill});
  Stream stream(prefill.server->address());
  ASSERT_TRUE(within(1s, [&] { return stream.seen().messages > 0; }));
  stream.close();
  EXPECT_TRUE(stream.wait_for_end().ok());
  EXPECT_TRUE(within(1s, [&] { return prefill.metric("millrace_streams_open") == 0; }));
}

class BrokenHandover : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Hosts, BrokenHandover, ::testing::Values("host-a", "host-b"));

TEST_P(BrokenHandover, OfADeadSourceFailsAsUnavailable) {
  auto prefill = std::make_unique<TestWorker>(TestWorker::Options{.role = Role::kPrefill});
  TestWorker decode({.role = Role::kDecode, .host_id = GetParam()});
  Stream to_decode(decode.server->address());
  const auto command = start_prefill("r", prompt_of(20), 30);
  proto::v1::EngineEvent first;
  {
    Stream to_prefill(prefill->server->address());
    to_prefill.send(command);
    first = *to_prefill.next("r");
    prefill.reset();
  }
  to_decode.send(start_decode(command, first.prefilled()));
  const auto event = to_decode.next("r");
  ASSERT_TRUE(event && event->has_failed());
  EXPECT_EQ(event->failed().code(), static_cast<int>(absl::StatusCode::kUnavailable))
      << event->failed().message();
  EXPECT_TRUE(within(1s, [&] { return decode.has_nothing_left(); }));
}

TEST_P(BrokenHandover, WithACorruptByteFailsAsDataLoss) {
  TestWorker prefill({.role = Role::kPrefill});
  TestWorker decode({.role = Role::kDecode, .host_id = GetParam()});
  Stream to_prefill(prefill.server->address());
  Stream to_decode(decode.server->address());
  const auto command = start_prefill("r", prompt_of(20), 30);
  to_prefill.send(command);
  const auto first = to_prefill.next("r");
  ASSERT_TRUE(first && first->has_prefilled());
  const int fd =
      ::shm_open(("/" + first->prefilled().handover().shm_name()).c_str(), O_RDWR | O_CLOEXEC, 0);
  ASSERT_GE(fd, 0);
  char byte = 0;
  ASSERT_EQ(::pread(fd, &byte, 1, 5), 1);
  byte = static_cast<char>(byte ^ 0x10);
  ASSERT_EQ(::pwrite(fd, &byte, 1, 5), 1);
  ::close(fd);
  to_decode.send(start_decode(command, first->prefilled()));
  const auto event = to_decode.next("r");
  ASSERT_TRUE(event && event->has_failed());
  EXPECT_EQ(event->failed().code(), static_cast<int>(absl::StatusCode::kDataLoss));
  EXPECT_TRUE(within(1s, [&] { return decode.has_nothing_left() && prefill.has_nothing_left(); }));
}

TEST(WorkerServer, DrainFinishesWhatRunsAndRefusesTheRest) {
  TestWorker prefill({.role = Role::kPrefill});
  TestWorker decode({.role = Role::kDecode});
  decode.controls->step_ms = 5;
  Stream to_prefill(prefill.server->address());
  Stream to_decode(decode.server->address());
  const auto command = start_prefill("r", prompt_of(20), 60);
  to_prefill.send(command);
  const auto first = to_prefill.next("r");
  ASSERT_TRUE(first && first->has_prefilled());
  to_decode.send(start_decode(command, first->prefilled()));
  ASSERT_TRUE(to_decode.next("r").has_value());

  decode.server->begin_drain();
  EXPECT_TRUE(within(1s, [&] { return to_decode.seen().load.draining(); }));
  EXPECT_FALSE(decode.server->wait_drained(0ms));
  auto late = start_decode(command, first->prefilled());
  late.mutable_start_decode()->mutable_key()->set_request_id("late");
  to_decode.send(late);
  const auto refused = to_decode.next("late");
  ASSERT_TRUE(refused && refused->has_failed());
  EXPECT_EQ(refused->failed().code(), static_cast<int>(absl::StatusCode::kUnavailable));

  int tokens = 1;
  for (;;) {
    const auto event = to_decode.next("r");
    ASSERT_TRUE(event && event->has_sampled());
    tokens += event->sampled().tokens_size();
    if (event->sampled().finish() == proto::v1::FINISH_REASON_LENGTH) break;
  }
  EXPECT_EQ(tokens, 59);  // one from prefill, one seen before the drain
  EXPECT_TRUE(decode.server->wait_drained(5s));
}

TEST(WorkerServer, DrainWaitsForHandoversToBeFetched) {
  TestWorker prefill({.role = Role::kPrefill});
  Stream stream(prefill.server->address());
  stream.send(start_prefill("r", prompt_of(20), 30));
  const auto first = stream.next("r");
  ASSERT_TRUE(first && first->has_prefilled());
  prefill.server->begin_drain();
  EXPECT_FALSE(prefill.server->wait_drained(200ms));
  stream.send(cancel("r", first->prefilled().handover().export_id()));
  EXPECT_TRUE(prefill.server->wait_drained(2s));
}

TEST(WorkerServer, WhatWasQueuedForAStreamIsSentBeforeTheServerEnds) {
  auto prefill = std::make_unique<TestWorker>(TestWorker::Options{.role = Role::kPrefill});
  Stream stream(prefill->server->address());
  for (int i = 0; i < 50; ++i) stream.send(start_prefill(str_cat("r", i), prompt_of(5), 1));
  ASSERT_TRUE(stream.next("r0").has_value());
  prefill->server->begin_drain();
  ASSERT_TRUE(prefill->server->wait_drained(5s));
  prefill.reset();
  for (int i = 1; i < 50; ++i) {
    const auto event = stream.next(str_cat("r", i));
    ASSERT_TRUE(event.has_value()) << i;
    EXPECT_TRUE(event->has_prefilled() || event->failed().code() == 14);
  }
  EXPECT_EQ(stream.wait_for_end().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(WorkerServer, AFullQueueRefusesAndTheQueueIsUsedAgain) {
  TestWorker prefill(
      {.role = Role::kPrefill, .limits = {.max_sequences = 1, .kv_blocks = 8, .max_waiting = 2}});
  prefill.controls->step_ms = 50;
  Stream stream(prefill.server->address());
  for (int i = 0; i < 10; ++i) stream.send(start_prefill(str_cat("r", i), prompt_of(5), 1));
  int done = 0;
  int refused = 0;
  for (int i = 0; i < 10; ++i) {
    const auto event = stream.next(str_cat("r", i));
    ASSERT_TRUE(event.has_value());
    if (event->has_prefilled()) ++done;
    if (event->has_failed()) {
      EXPECT_EQ(event->failed().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
      ++refused;
    }
  }
  EXPECT_EQ(done + refused, 10);
  EXPECT_GE(done, 2);
  EXPECT_GE(refused, 1);
  EXPECT_EQ(prefill.metric("millrace_requests_failed_total{reason=\"resource_exhausted\"}"),
            refused);
  stream.send(start_prefill("after", prompt_of(5), 1));
  EXPECT_TRUE(stream.next("after")->has_prefilled());
}

TEST(WorkerServer, ARequestOverItsDeadlineFails) {
  TestWorker prefill({.role = Role::kPrefill});
  prefill.controls->step_ms = 20;
  Stream stream(prefill.server->address());
  auto command = start_prefill("r", prompt_of(3900), 1);
  command.mutable_start_prefill()->set_deadline_ms(50);
  stream.send(command);
  const auto event = stream.next("r");
  ASSERT_TRUE(event && event->has_failed());
  EXPECT_EQ(event->failed().code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(within(1s, [&] { return prefill.has_nothing_left(); }));
}

TEST(WorkerServer, APortInUseIsAnErrorThatNamesIt) {
  TestWorker first({.role = Role::kPrefill});
  WorkerConfig config = first.config;
  config.worker_id += "-second";
  config.listen_address = first.server->address();
  Registry registry;
  const auto second = WorkerServer::start(config, std::make_unique<TestEngine>(first.controls, 8),
                                          registry, first.log);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(first.server->address()));
}

}  // namespace
}  // namespace millrace::dataplane::worker
