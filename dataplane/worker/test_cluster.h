#pragma once

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "api/proto/engine.grpc.pb.h"
#include "common/check.h"
#include "common/str_cat.h"
#include "dataplane/worker/worker_server.h"

// For the tests of this folder: workers in this process and the entrypoint's side of their streams,
// over real sockets.

namespace millrace::dataplane::worker {

using namespace std::chrono_literals;  // NOLINT: a header of tests

/// What "cancelled everywhere within a second" means here. A sanitizer slows everything tenfold,
/// which says nothing about the product.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr std::chrono::milliseconds kSoon = 10s;
#else
inline constexpr std::chrono::milliseconds kSoon = 1s;
#endif

inline transfer::PeerIdentity test_identity() {
  return {.model_id = "nano", .artifact_digest = std::string(32, 'd')};
}

/// One worker with its metrics and log; an error in the log ends the test.
class TestWorker {
 public:
  struct Options {
    Role role = Role::kPrefill;
    std::string host_id = "host-a";
    scheduler::SchedulerLimits limits{.kv_blocks = 64};
    transfer::ExportLimits exports{};
    std::vector<TokenId> eos_tokens = {7};
  };

  TestWorker(const Options& options, std::unique_ptr<engine::Engine> engine)
      : log(Logger::to_sink("worker", LogLevel::kError, [](std::string_view line) {
          CHECK(false, str_cat("unexpected error in the log: ", line));
        })) {
    config.role = options.role;
    config.worker_id =
        str_cat(options.role == Role::kPrefill ? "p-" : "d-", ::getpid(), "-", ++made_);
    config.host_id = options.host_id;
    config.identity = test_identity();
    config.eos_tokens = options.eos_tokens;
    config.limits = options.limits;
    config.exports = options.exports;
    auto started = WorkerServer::start(config, std::move(engine), registry, log);
    CHECK(started.ok(), message_of(started.status()));
    server = *std::move(started);
  }

  double metric(const std::string& name) const {
    const std::string text = registry.exposition();
    const std::size_t at = text.find("\n" + name + " ");
    CHECK(at != std::string::npos, name);
    return std::stod(text.substr(at + name.size() + 2));
  }

  /// The gauges that must come back to zero.
  bool gauges_are_zero() const {
    return metric("millrace_requests_running") == 0 && metric("millrace_requests_waiting") == 0 &&
           metric("millrace_kv_blocks_used") == 0 && metric("millrace_kv_exports_pinned") == 0;
  }

  Registry registry;
  Logger log;
  WorkerConfig config;
  std::unique_ptr<WorkerServer> server;

 private:
  static inline std::atomic<int> made_{0};
};

inline bool within(std::chrono::milliseconds timeout, const std::function<bool()>& condition) {
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
  explicit Stream(const std::string& address,
                  std::optional<transfer::PeerIdentity> greet_as = test_identity())
      : channel_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())),
        stub_(proto::v1::Engine::NewStub(channel_)),
        stream_(stub_->Connect(&context_)) {
    if (greet_as) {
      proto::v1::EngineCommand command;
      set_identity(*command.mutable_hello()->mutable_identity(), *greet_as);
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

  bool is_over() {
    std::lock_guard lock(mutex_);
    return is_over_;
  }

  /// Waits for the next event of a request's attempt; nullopt when none comes any more.
  std::optional<proto::v1::EngineEvent> next(const std::string& request_id,
                                             std::uint32_t attempt = 0) {
    std::unique_lock lock(mutex_);
    auto& queue = events_[{request_id, attempt}];
    changed_.wait_for(lock, 10s, [&] { return !queue.empty() || is_over_; });
    if (queue.empty()) return std::nullopt;
    proto::v1::EngineEvent event = queue.front();
    queue.pop_front();
    return event;
  }

  bool has_event(const std::string& request_id) {
    std::lock_guard lock(mutex_);
    return !events_[{request_id, 0}].empty();
  }

  /// Waits for the worker's next claim; nullopt when none comes for so long.
  std::optional<proto::v1::Claim> next_claim(std::chrono::milliseconds timeout = kSoon) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return !claims_.empty() || is_over_; });
    if (claims_.empty()) return std::nullopt;
    proto::v1::Claim claim = claims_.front();
    claims_.pop_front();
    return claim;
  }

  grpc::Status wait_for_end() {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, 10s, [&] { return is_over_; }), "the stream ends");
    return end_;
  }

  struct Seen {
    int messages = 0;
    proto::v1::EngineLoad load;
    std::optional<proto::v1::PrefillCost> cost;
    std::vector<std::chrono::nanoseconds> silences;  ///< between a message and the next
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
      if (seen_.messages > 0) seen_.silences.push_back(now - last);
      last = now;
      ++seen_.messages;
      CHECK(message.has_load(), "every message carries the load");
      CHECK(message.load().sequence() == seen_.load.sequence() + 1, "loads are numbered");
      seen_.load = message.load();
      if (message.has_prefill_cost()) seen_.cost = message.prefill_cost();
      if (message.has_claim()) claims_.push_back(message.claim());
      for (const auto& event : message.events()) {
        events_[{event.key().request_id(), event.key().attempt()}].push_back(event);
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
  std::map<std::pair<std::string, std::uint32_t>, std::deque<proto::v1::EngineEvent>> events_;
  std::deque<proto::v1::Claim> claims_;
  Seen seen_;
  bool is_over_ = false;
  grpc::Status end_;
  std::thread reader_;
};

inline void set_sampling(proto::v1::SamplingState& wire, int max_new_tokens,
                         double temperature = 0) {
  wire.set_temperature(temperature);
  wire.set_top_p(1);
  wire.set_repetition_penalty(1);
  wire.set_seed(17);
  wire.set_ignore_eos(true);
  wire.set_max_new_tokens(static_cast<std::uint32_t>(max_new_tokens));
}

inline proto::v1::EngineCommand start_prefill(const std::string& id,
                                              const std::vector<TokenId>& tokens,
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

inline proto::v1::EngineCommand start_decode(const proto::v1::EngineCommand& prefill,
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

/// `waiting` requests in a bucket, the first one for so long; all buckets are the worker's.
inline proto::v1::EngineCommand offer(std::uint32_t bucket, std::uint32_t waiting,
                                      std::chrono::microseconds waited = {},
                                      std::uint64_t answered_claim = 0) {
  proto::v1::EngineCommand command;
  proto::v1::Offers& offers = *command.mutable_offers();
  offers.set_served_buckets(0xF);
  offers.set_answered_claim(answered_claim);
  if (waiting == 0) return command;
  proto::v1::BucketOffer& place = *offers.add_buckets();
  place.set_bucket(bucket);
  place.set_waiting(waiting);
  place.set_oldest_waited_us(static_cast<std::uint64_t>(waited.count()));
  return command;
}

inline proto::v1::EngineCommand cancel(const std::string& id, std::uint64_t export_id = 0) {
  proto::v1::EngineCommand command;
  command.mutable_cancel()->mutable_key()->set_request_id(id);
  command.mutable_cancel()->set_export_id(export_id);
  return command;
}

/// Collects a text to its end from both streams; what came so far when a request fails.
inline std::vector<TokenId> generate(Stream& prefill, Stream& decode,
                                     const proto::v1::EngineCommand& command) {
  const std::string id = command.start_prefill().key().request_id();
  std::vector<TokenId> text;
  prefill.send(command);
  const auto first = prefill.next(id);
  if (!first || !first->has_prefilled()) return text;
  text.push_back(first->prefilled().token().token());
  if (first->prefilled().finish() != proto::v1::FINISH_REASON_NONE) return text;
  decode.send(start_decode(command, first->prefilled()));
  for (;;) {
    const auto event = decode.next(id);
    if (!event || !event->has_sampled()) return text;
    for (const auto& token : event->sampled().tokens()) text.push_back(token.token());
    if (event->sampled().finish() != proto::v1::FINISH_REASON_NONE) return text;
  }
}

}  // namespace millrace::dataplane::worker
