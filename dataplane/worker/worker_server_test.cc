// A prefill and a decode worker in one process, over real sockets.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "dataplane/worker/test_cluster.h"
#include "dataplane/worker/test_engine.h"

namespace millrace::dataplane::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A worker over the test engine.
struct HashWorker : TestWorker {
  explicit HashWorker(const Options& options)
      : HashWorker(options, std::make_shared<TestEngineControls>()) {}
  HashWorker(const Options& options, std::shared_ptr<TestEngineControls> shared)
      : TestWorker(options, std::make_unique<TestEngine>(shared, options.limits.kv_blocks)),
        controls(std::move(shared)) {}

  bool has_nothing_left() const { return controls->sequences == 0 && gauges_are_zero(); }

  std::shared_ptr<TestEngineControls> controls;
};

std::vector<TokenId> prompt_of(std::size_t count) {
  std::vector<TokenId> tokens(count);
  for (std::size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<TokenId>((i * 31 + count) % TestEngine::kVocab);
  }
  return tokens;
}

class TwoWorkers : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Hosts, TwoWorkers, ::testing::Values("host-a", "host-b"));

TEST_P(TwoWorkers, WriteTheTextThatOneProcessWould) {
  HashWorker prefill({.role = Role::kPrefill});
  HashWorker decode({.role = Role::kDecode, .host_id = GetParam()});
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
  EXPECT_TRUE(
      within(kSoon, [&] { return prefill.has_nothing_left() && decode.has_nothing_left(); }));
  const bool is_shared = GetParam() == "host-a";
  EXPECT_EQ(decode.metric("millrace_kv_imports_total{path=\"shared_memory\"}"), is_shared ? 6 : 0);
  EXPECT_EQ(decode.metric("millrace_kv_imports_total{path=\"stream\"}"), is_shared ? 0 : 6);
}

TEST(WorkerServer, ManyRequestsOverOneStreamEndWithTheirOwnTexts) {
  HashWorker prefill({.role = Role::kPrefill});
  HashWorker decode({.role = Role::kDecode, .limits = {.max_sequences = 8, .kv_blocks = 32}});
  Stream to_prefill(prefill.server->address());
  Stream to_decode(decode.server->address());
  std::vector<std::thread> clients;
  clients.reserve(16);
  for (std::size_t client = 0; client < 16; ++client) {
    clients.emplace_back([&, client] {
      for (std::size_t i = 0; i < 5; ++i) {
        const auto prompt = prompt_of(1 + client * 17 + i);
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
  EXPECT_TRUE(
      within(5 * kSoon, [&] { return prefill.has_nothing_left() && decode.has_nothing_left(); }));
}

TEST(WorkerServer, APromptOf32KTokensFitsAMessage) {
  HashWorker prefill({.role = Role::kPrefill});
  Stream stream(prefill.server->address());
  // Longer than the test engine's context: the answer shows that it was read to the end.
  stream.send(start_prefill("r", std::vector<TokenId>(32'768, 49), 1));
  const auto event = stream.next("r");
  ASSERT_TRUE(event && event->has_failed());
  EXPECT_THAT(event->failed().message(), HasSubstr("32768"));
}

TEST(WorkerServer, AnotherIdentityIsRefusedWithBothValues) {
  HashWorker prefill({.role = Role::kPrefill});
  Stream stream(prefill.server->address(), std::nullopt);
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
  HashWorker prefill({.role = Role::kPrefill});
  Stream stream(prefill.server->address(), std::nullopt);
  stream.send(start_prefill("r", prompt_of(3), 1));
  EXPECT_EQ(stream.wait_for_end().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(within(kSoon, [&] { return prefill.metric("millrace_streams_open") == 0; }));
}

TEST(WorkerServer, AMalformedRequestFailsAloneAndAnEmptyCommandEndsTheStream) {
  HashWorker prefill({.role = Role::kPrefill});
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

TEST(WorkerServer, ClaimsWhatIsOfferedAsLongAsItHasRoom) {
  // 0.1 ms a row as long as nothing was measured: two steps are 400 rows.
  HashWorker prefill({.limits = {.kv_blocks = 64, .step_budget_ns = 20e6}});
  prefill.controls->is_stopped = true;
  Stream older(prefill.server->address());
  Stream younger(prefill.server->address());
  EXPECT_TRUE(within(kSoon, [&] { return older.seen().load.wants_more(); }));
  younger.send(offer(1, 1, 1ms));
  EXPECT_EQ(younger.next_claim()->bucket(), 1U);
  older.send(offer(0, 2, 1s));
  EXPECT_FALSE(older.next_claim(50ms).has_value()) << "one at a time";
  younger.send(offer(0, 0, {}, 1));  // gone
  ASSERT_EQ(older.next_claim()->number(), 1U);
  auto granted = start_prefill("a", prompt_of(300), 1);
  granted.mutable_start_prefill()->set_answered_claim(1);
  older.send(granted);
  ASSERT_EQ(older.next_claim()->number(), 2U) << "less than two steps are queued";
  granted = start_prefill("b", prompt_of(200), 1);
  granted.mutable_start_prefill()->set_answered_claim(2);
  older.send(granted);
  EXPECT_TRUE(within(kSoon, [&] { return !older.seen().load.wants_more(); }));
  older.send(offer(0, 1));
  EXPECT_FALSE(older.next_claim(150ms).has_value());
  EXPECT_EQ(prefill.metric("millrace_prefill_claims_total"), 3);
  EXPECT_EQ(prefill.metric("millrace_prefill_claims_gone_total"), 1);
  // The first is done: there is room, and it asks without being told again.
  prefill.controls->is_stopped = false;
  EXPECT_EQ(older.next_claim()->number(), 3U);
}

TEST(WorkerServer, ClaimsNothingWhileDecodeDoesNotFetchWhatIsDone) {
  HashWorker prefill({.exports = {.max_exports = 1}});
  Stream stream(prefill.server->address());
  stream.send(start_prefill("a", prompt_of(3), 5));
  const auto first = stream.next("a");
  ASSERT_TRUE(first && first->has_prefilled());
  stream.send(start_prefill("b", prompt_of(3), 5));
  EXPECT_TRUE(within(kSoon, [&] { return !stream.seen().load.wants_more(); }));
  stream.send(offer(0, 1));
  EXPECT_FALSE(stream.next_claim(150ms).has_value());
  stream.send(cancel("a", first->prefilled().handover().export_id()));
  EXPECT_TRUE(stream.next("b")->has_prefilled());
  EXPECT_TRUE(stream.next_claim().has_value());
}

TEST(WorkerServer, AClaimAnsweredByARequestThatCannotRunIsAnswered) {
  HashWorker prefill({});
  Stream stream(prefill.server->address());
  stream.send(offer(0, 5));
  ASSERT_EQ(stream.next_claim()->number(), 1U);
  auto malformed = start_prefill("bad", prompt_of(3), 1);
  malformed.mutable_start_prefill()->mutable_sampling()->set_top_k(4'000'000'000u);
  malformed.mutable_start_prefill()->set_answered_claim(1);
  stream.send(malformed);
  EXPECT_TRUE(stream.next("bad")->has_failed());
  EXPECT_EQ(stream.next_claim()->number(), 2U);
}

TEST(WorkerServer, OnlyPrefillWorkersThatDoNotDrainClaim) {
  HashWorker decode({.role = Role::kDecode});
  Stream to_decode(decode.server->address());
  to_decode.send(offer(0, 1));
  HashWorker prefill({});
  Stream to_prefill(prefill.server->address());
  prefill.server->begin_drain();
  EXPECT_TRUE(within(kSoon, [&] { return to_prefill.seen().load.draining(); }));
  to_prefill.send(offer(0, 1));
  EXPECT_FALSE(to_prefill.next_claim(150ms).has_value());
  EXPECT_FALSE(to_decode.next_claim(1ms).has_value());
  EXPECT_FALSE(to_decode.seen().load.wants_more());
}

TEST(WorkerServer, OffersThatMakeNoSenseEndTheStream) {
  HashWorker prefill({});
  for (const auto& bad : {offer(4, 1), [] {
                            auto twice = offer(2, 1);
                            *twice.mutable_offers()->add_buckets() = twice.offers().buckets(0);
                            return twice;
                          }()}) {
    Stream stream(prefill.server->address());
    stream.send(bad);
    const grpc::Status end = stream.wait_for_end();
    EXPECT_EQ(end.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(end.error_message(), HasSubstr("bucket"));
  }
}

TEST(WorkerServer, CountsByThePublishedCostsUntilItHasMeasuredItsOwn) {
  HashWorker prefill({});
  proto::v1::EngineCommand hello;
  Stream::set_identity(*hello.mutable_hello()->mutable_identity(), test_identity());
  hello.mutable_hello()->mutable_prefill_cost()->set_linear_ns(-1);
  {
    Stream stream(prefill.server->address(), std::nullopt);
    stream.send(hello);
    const grpc::Status end = stream.wait_for_end();
    EXPECT_EQ(end.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(end.error_message(), AllOf(HasSubstr("prefill_cost"), HasSubstr("linear")));
  }
  hello.mutable_hello()->mutable_prefill_cost()->set_linear_ns(1e6);
  prefill.controls->is_stopped = true;
  Stream stream(prefill.server->address(), std::nullopt);
  stream.send(hello);
  stream.send(start_prefill("a", prompt_of(3), 1));
  stream.send(start_prefill("b", prompt_of(700), 1));
  EXPECT_TRUE(within(kSoon, [&] { return !stream.seen().load.wants_more(); }));
  EXPECT_FALSE(stream.seen().cost.has_value());
  prefill.controls->is_stopped = false;
  // Prompts of several lengths, until the fit can tell what a row costs.
  for (std::size_t i = 0; i < 40; ++i) {
    const std::string id = str_cat("m", i);
    stream.send(start_prefill(id, prompt_of(1 + i * 9), 1));
    ASSERT_TRUE(stream.next(id)->has_prefilled());
  }
  EXPECT_TRUE(within(kSoon, [&] { return stream.seen().cost.has_value(); }));
  EXPECT_LT(stream.seen().cost->linear_ns(), 1e6);
}

TEST(WorkerServer, TheLoadComesAtLeastEvery200Ms) {
  HashWorker prefill({.role = Role::kPrefill});
  prefill.controls->step_ms = 3000;  // a long step does not silence the worker
  Stream stream(prefill.server->address());
  ASSERT_TRUE(within(kSoon, [&] { return stream.seen().messages > 0; }));
  stream.send(start_prefill("r", prompt_of(3), 1));
  ASSERT_TRUE(within(2800ms, [&] { return stream.seen().silences.size() >= 7; }));
  EXPECT_FALSE(stream.has_event("r")) << "the step has not ended";
  Stream::Seen seen = stream.seen();
  // Half of them, because a busy machine may keep anybody waiting once.
  const auto middle = seen.silences.begin() + std::ssize(seen.silences) / 2;
  std::nth_element(seen.silences.begin(), middle, seen.silences.end());
  EXPECT_LT(*middle, 400ms);  // 200 ms, and what a busy machine adds to every one
  EXPECT_EQ(seen.load.kv_blocks_total(), 64u);
}

TEST(WorkerServer, CancelStopsARunningRequestEverywhere) {
  HashWorker prefill({.role = Role::kPrefill});
  HashWorker decode({.role = Role::kDecode});
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
  EXPECT_TRUE(
      within(kSoon, [&] { return decode.has_nothing_left() && prefill.has_nothing_left(); }));
  EXPECT_EQ(decode.metric("millrace_requests_cancelled_total"), 1);
}

TEST(WorkerServer, CancelDropsAHandoverThatNobodyFetches) {
  HashWorker prefill({.role = Role::kPrefill});
  Stream stream(prefill.server->address());
  stream.send(start_prefill("r", prompt_of(20), 30));
  const auto first = stream.next("r");
  ASSERT_TRUE(first && first->has_prefilled());
  EXPECT_TRUE(within(kSoon, [&] { return prefill.metric("millrace_kv_exports_pinned") == 1; }));
  stream.send(cancel("r", first->prefilled().handover().export_id()));
  EXPECT_TRUE(within(kSoon, [&] { return prefill.has_nothing_left(); }));
}

// Half the clients hang up while they stream, half while they wait for a sequence.
TEST(WorkerServer, AStreamThatBreaksTakesItsRequestsAlong) {
  HashWorker prefill({.role = Role::kPrefill});
  HashWorker decode({.role = Role::kDecode, .limits = {.max_sequences = 2, .kv_blocks = 64}});
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
    EXPECT_TRUE(within(kSoon, [&] { return decode.metric("millrace_requests_running") == 2; }));
    EXPECT_EQ(decode.metric("millrace_requests_waiting"), 2);
    to_prefill.hang_up();
    to_decode.hang_up();
    EXPECT_TRUE(
        within(kSoon, [&] { return decode.has_nothing_left() && prefill.has_nothing_left(); }));
  }
  EXPECT_TRUE(within(kSoon, [&] { return decode.metric("millrace_streams_open") == 0; }));
  EXPECT_EQ(prefill.metric("millrace_streams_open"), 1);
  other.send(start_prefill("still", prompt_of(3), 1));
  EXPECT_TRUE(other.next("still").has_value());
}

TEST(WorkerServer, ClosingTheStreamInOrderEndsIt) {
  HashWorker prefill({.role = Role::kPrefill});
  Stream stream(prefill.server->address());
  ASSERT_TRUE(within(kSoon, [&] { return stream.seen().messages > 0; }));
  stream.close();
  EXPECT_TRUE(stream.wait_for_end().ok());
  EXPECT_TRUE(within(kSoon, [&] { return prefill.metric("millrace_streams_open") == 0; }));
}

class BrokenHandover : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Hosts, BrokenHandover, ::testing::Values("host-a", "host-b"));

TEST_P(BrokenHandover, OfADeadSourceFailsAsUnavailable) {
  auto prefill = std::make_unique<HashWorker>(HashWorker::Options{.role = Role::kPrefill});
  HashWorker decode({.role = Role::kDecode, .host_id = GetParam()});
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
  EXPECT_TRUE(within(kSoon, [&] { return decode.has_nothing_left(); }));
}

TEST_P(BrokenHandover, WithACorruptByteFailsAsDataLoss) {
  HashWorker prefill({.role = Role::kPrefill});
  HashWorker decode({.role = Role::kDecode, .host_id = GetParam()});
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
  EXPECT_TRUE(
      within(kSoon, [&] { return decode.has_nothing_left() && prefill.has_nothing_left(); }));
}

TEST(WorkerServer, DrainFinishesWhatRunsAndRefusesTheRest) {
  HashWorker prefill({.role = Role::kPrefill});
  HashWorker decode({.role = Role::kDecode});
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
  EXPECT_TRUE(within(kSoon, [&] { return to_decode.seen().load.draining(); }));
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
  HashWorker prefill({.role = Role::kPrefill});
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
  auto prefill = std::make_unique<HashWorker>(HashWorker::Options{.role = Role::kPrefill});
  Stream stream(prefill->server->address());
  for (int i = 0; i < 50; ++i) stream.send(start_prefill(str_cat("r", i), prompt_of(5), 1));
  // All of them have run. A command that is still on the wire when the server ends has no answer:
  // its entrypoint sees the stream break and asks another worker.
  ASSERT_TRUE(
      within(kSoon, [&] { return prefill->metric("millrace_generated_tokens_total") == 50; }));
  prefill->server->begin_drain();
  ASSERT_TRUE(prefill->server->wait_drained(5s));
  prefill.reset();
  for (int i = 0; i < 50; ++i) {
    const auto event = stream.next(str_cat("r", i));
    ASSERT_TRUE(event.has_value()) << i;
    EXPECT_TRUE(event->has_prefilled());
  }
  EXPECT_EQ(stream.wait_for_end().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(WorkerServer, AFullQueueRefusesAndTheQueueIsUsedAgain) {
  HashWorker prefill(
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
  HashWorker prefill({.role = Role::kPrefill});
  prefill.controls->step_ms = 20;
  Stream stream(prefill.server->address());
  auto command = start_prefill("r", prompt_of(3900), 1);
  command.mutable_start_prefill()->set_deadline_ms(50);
  stream.send(command);
  const auto event = stream.next("r");
  ASSERT_TRUE(event && event->has_failed());
  EXPECT_EQ(event->failed().code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(within(kSoon, [&] { return prefill.has_nothing_left(); }));
}

TEST(WorkerServer, APortInUseIsAnErrorThatNamesIt) {
  HashWorker first({.role = Role::kPrefill});
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
