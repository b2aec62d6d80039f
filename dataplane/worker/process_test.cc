// millrace-worker as a process: start, service, death, drain.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "api/admin/shared_memory.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/process/child_process.h"
#include "common/process/shared_region.h"
#include "dataplane/cost/cost_file.h"
#include "dataplane/worker/test_cluster.h"
#include "dataplane/worker/test_single.h"

namespace millrace::dataplane::worker {
namespace {

using ::testing::HasSubstr;

constexpr char kHostId[] = "host-a";
constexpr char kModelFolder[] = MILLRACE_BINARY_DIR "/golden/windowed";

/// Written by the reference when the tests run; its window is the real one.
const RandomModel& random_model() {
  static const RandomModel model(kModelFolder);
  return model;
}

std::string temporary_path(const std::string& name) {
  return str_cat(::testing::TempDir(), "worker_process_", ::getpid(), "_", name);
}

ChildSpec spec_of(const std::string& role, const std::string& id, const std::string& listen) {
  return {.program = MILLRACE_WORKER_PROGRAM,
          .arguments = {"--role",      role,    "--model",         kModelFolder,
                        "--model-id",  "nano",  "--worker-id",     id,
                        "--host-id",   kHostId, "--listen",        listen,
                        "--kv-blocks", "128",   "--max-sequences", "32",
                        "--step-rows", "96",    "--ready-file",    temporary_path(id + ".ready"),
                        "--log-level", "warn"},
          .output_path = temporary_path(id + ".log")};
}

/// A worker process that can be killed and started again on the same port.
class WorkerProcess {
 public:
  explicit WorkerProcess(const std::string& role)
      : role_(role), id_(str_cat(role, "-", ::getpid())) {
    start();
  }
  ~WorkerProcess() {
    child_.reset();
    remove_regions();
    std::filesystem::remove(temporary_path(id_ + ".ready"));
    std::filesystem::remove(temporary_path(id_ + ".log"));
  }

  void start() {
    std::filesystem::remove(temporary_path(id_ + ".ready"));
    auto child = ChildProcess::start(spec_of(role_, id_, address_));
    ASSERT_TRUE(child.ok()) << child.status();
    child_.emplace(*std::move(child));
    ASSERT_TRUE(within(20s, [&] {
      return std::filesystem::exists(temporary_path(id_ + ".ready"));
    })) << log();
    const auto ready = parse_json(*read_file(temporary_path(id_ + ".ready")));
    ASSERT_TRUE(ready.ok()) << ready.status();
    address_ = *json_string(*ready, "address");
    EXPECT_EQ(*json_int(*ready, "pid"), child_->pid());
    EXPECT_EQ(*json_string(*ready, "model_id"), "nano");
    EXPECT_EQ(json_string(*ready, "artifact_digest")->size(), 64u);
    EXPECT_THAT(*json_string(*ready, "metrics_address"), HasSubstr("127.0.0.1:"));
    digest_hex_ = *json_string(*ready, "artifact_digest");
  }

  void kill_and_restart() {
    child_->send(SIGKILL);
    ASSERT_TRUE(child_->wait_for(5s).has_value());
    start();
  }

  ChildProcess& child() { return *child_; }
  const std::string& address() const { return address_; }
  const std::string& id() const { return id_; }
  /// Removes what the worker left in shared memory; returns how many regions.
  int remove_regions() const {
    return remove_shared_regions(
        api::admin::shared_memory_prefix({.host_id = kHostId, .worker_id = id_}));
  }
  std::string log() const { return read_file(temporary_path(id_ + ".log")).value_or("no log"); }
  transfer::PeerIdentity identity() const {
    transfer::PeerIdentity identity{.model_id = "nano", .artifact_digest = {}};
    for (std::size_t i = 0; i < digest_hex_.size(); i += 2) {
      identity.artifact_digest.push_back(
          static_cast<char>(std::stoi(digest_hex_.substr(i, 2), nullptr, 16)));
    }
    return identity;
  }

 private:
  const std::string role_;
  const std::string id_;
  std::string address_ = "127.0.0.1:0";
  std::string digest_hex_;
  std::optional<ChildProcess> child_;
};

/// What an entrypoint does with its streams: one per worker, opened again when it breaks.
class Link {
 public:
  explicit Link(const WorkerProcess& worker) : worker_(worker) {}

  std::shared_ptr<Stream> get() {
    std::lock_guard lock(mutex_);
    if (stream_ == nullptr || stream_->is_over()) {
      stream_ = std::make_shared<Stream>(worker_.address(), worker_.identity());
    }
    return stream_;
  }

 private:
  const WorkerProcess& worker_;
  std::mutex mutex_;
  std::shared_ptr<Stream> stream_;
};

/// Brings one request to its end, whatever dies: after a failure that another try may cure, prompt
/// and delivered tokens go to prefill again.
std::vector<TokenId> generate_through_deaths(Link& prefill, Link& decode, const std::string& id,
                                             const Prompt& prompt, std::atomic<int>& delivered,
                                             std::atomic<int>& reroutes) {
  std::vector<TokenId> text;
  for (std::uint32_t attempt = 1; attempt < 200; ++attempt) {
    if (attempt > 1) {
      ++reroutes;
      std::this_thread::sleep_for(20ms);
    }
    std::vector<TokenId> tokens = prompt.tokens;
    tokens.insert(tokens.end(), text.begin(), text.end());
    auto command = start_prefill(id, tokens, prompt.max_new_tokens, prompt.temperature);
    auto& start = *command.mutable_start_prefill();
    start.set_prompt_tokens(static_cast<std::uint32_t>(prompt.tokens.size()));
    start.mutable_key()->set_attempt(attempt);
    const auto to_prefill = prefill.get();
    to_prefill->send(command);
    const auto first = to_prefill->next(id, attempt);
    if (!first || !first->has_prefilled()) continue;
    text.push_back(first->prefilled().token().token());
    ++delivered;
    if (first->prefilled().finish() != proto::v1::FINISH_REASON_NONE) return text;
    const auto to_decode = decode.get();
    to_decode->send(start_decode(command, first->prefilled()));
    for (;;) {
      const auto event = to_decode->next(id, attempt);
      if (!event || !event->has_sampled()) break;
      for (const auto& token : event->sampled().tokens()) text.push_back(token.token());
      ++delivered;
      if (event->sampled().finish() != proto::v1::FINISH_REASON_NONE) return text;
    }
  }
  ADD_FAILURE() << "request " << id << " never ended";
  return text;
}

class Death : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Roles, Death, ::testing::Values("prefill", "decode"));

TEST_P(Death, OfAWorkerInTheMiddleOfTwentyStreamsChangesNoText) {
  WorkerProcess prefill("prefill");
  WorkerProcess decode("decode");
  if (HasFatalFailure()) return;
  const std::vector<Prompt> prompts = make_prompts(random_model().vocab_size(), 20, 40);
  std::vector<std::vector<TokenId>> expected;
  const auto single = random_model().open_engine();
  int total = 0;
  for (const Prompt& prompt : prompts) {
    expected.push_back(single_process_text(*single, prompt));
    total += prompt.max_new_tokens;
  }
  Link to_prefill(prefill);
  Link to_decode(decode);
  std::atomic<int> delivered{0};
  std::atomic<int> reroutes{0};
  std::vector<std::thread> clients;
  std::vector<std::vector<TokenId>> texts(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    clients.emplace_back([&, i] {
      // Prefills come one after the other, so that the death of their worker meets some too.
      std::this_thread::sleep_for(std::chrono::milliseconds(20 * i));
      texts[i] = generate_through_deaths(to_prefill, to_decode, str_cat("r", i), prompts[i],
                                         delivered, reroutes);
    });
  }
  WorkerProcess& victim = GetParam() == "prefill" ? prefill : decode;
  for (const int share : {8, 3, 2}) {
    EXPECT_TRUE(within(60s, [&] { return delivered >= total / share; }));
    victim.kill_and_restart();
  }
  for (std::thread& client : clients) client.join();
  for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(texts[i], expected[i]) << i;
  EXPECT_GT(reroutes, 0);
  RecordProperty("reroutes", reroutes.load());
}

TEST(WorkerProcess, DrainsOnSigtermAndLeavesNothingBehind) {
  WorkerProcess prefill("prefill");
  WorkerProcess decode("decode");
  if (HasFatalFailure()) return;
  const Prompt prompt = make_prompts(random_model().vocab_size(), 8, 100)[7];
  const auto expected = single_process_text(*random_model().open_engine(), prompt);
  Link to_prefill(prefill);
  Link to_decode(decode);
  std::atomic<int> delivered{0};
  std::atomic<int> reroutes{0};
  std::vector<TokenId> text;
  std::thread client([&] {
    text = generate_through_deaths(to_prefill, to_decode, "r", prompt, delivered, reroutes);
  });
  EXPECT_TRUE(within(20s, [&] { return delivered >= 3; }));
  decode.child().send(SIGTERM);
  prefill.child().send(SIGTERM);
  client.join();
  EXPECT_EQ(text, expected);
  EXPECT_EQ(reroutes, 0);
  for (WorkerProcess* worker : {&prefill, &decode}) {
    const auto status = worker->child().wait_for(10s);
    ASSERT_TRUE(status.has_value());
    EXPECT_TRUE(status->is_success()) << describe(*status) << "\n" << worker->log();
  }
  EXPECT_EQ(prefill.remove_regions(), 0);
}

TEST(WorkerProcess, ASecondSignalCutsTheDrainShort) {
  WorkerProcess prefill("prefill");
  if (HasFatalFailure()) return;
  Link link(prefill);
  const auto stream = link.get();
  // Handed over and never fetched: a drain would wait for it.
  stream->send(start_prefill("r", {10, 11, 12}, 20));
  ASSERT_TRUE(stream->next("r").has_value());
  prefill.child().send(SIGTERM);
  EXPECT_FALSE(prefill.child().wait_for(300ms).has_value());
  prefill.child().send(SIGTERM);
  const auto status = prefill.child().wait_for(10s);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code, 1);
  EXPECT_THAT(prefill.log(), HasSubstr("cut off"));
  EXPECT_EQ(prefill.remove_regions(), 0);
}

/// Runs a worker that must fail to start; returns what it wrote.
std::string failed_start(const std::vector<std::pair<std::string, std::string>>& changes) {
  ChildSpec spec = spec_of("prefill", str_cat("fails-", ::getpid()), "127.0.0.1:0");
  for (const auto& [flag, value] : changes) {
    const auto at = std::find(spec.arguments.begin(), spec.arguments.end(), flag);
    if (at == spec.arguments.end()) {
      spec.arguments.insert(spec.arguments.end(), {flag, value});
    } else {
      *std::next(at) = value;
    }
  }
  std::filesystem::remove(spec.output_path);
  auto child = ChildProcess::start(spec);
  EXPECT_TRUE(child.ok()) << child.status();
  const auto status = child->wait_for(20s);
  EXPECT_TRUE(status.has_value() && !status->is_success());
  std::string text = read_file(spec.output_path).value_or("");
  std::filesystem::remove(spec.output_path);
  return text;
}

TEST(WorkerProcess, WhatCannotStartSaysWhy) {
  EXPECT_THAT(failed_start({{"--model", "/nonexistent-model"}}), HasSubstr("/nonexistent-model"));
  EXPECT_THAT(failed_start({{"--role", "both"}}), HasSubstr("role"));
  EXPECT_THAT(failed_start({{"--engine", "speed=on"}}), HasSubstr("speed"));
  EXPECT_THAT(failed_start({{"--log-level", "loud"}}), HasSubstr("loud"));
  EXPECT_THAT(failed_start({{"--worker-id", "a/b"}}), HasSubstr("a/b"));
  EXPECT_THAT(failed_start({{"--step-rows", "2"}}), HasSubstr("2 rows"));
  EXPECT_THAT(failed_start({{"--listen", "0.0.0.0:0"}}), HasSubstr("--advertise"));
  EXPECT_THAT(failed_start({{"--surprise", "1"}}), HasSubstr("--surprise"));
  EXPECT_THAT(failed_start({{"--cost-file", "/nonexistent-costs"}}),
              HasSubstr("/nonexistent-costs"));
  // Costs of another checkpoint.
  const std::string costs = temporary_path("costs.json");
  ASSERT_TRUE(write_file_atomically(
                  costs, cost::to_json_text({.subject = {"nano", std::string(64, 'a'), "cpu", ""},
                                             .source = {},
                                             .prefill = {.linear = 1},
                                             .decode = {.fixed = 1}}))
                  .ok());
  EXPECT_THAT(failed_start({{"--cost-file", costs}}), HasSubstr("checkpoint"));
  std::filesystem::remove(costs);
}

}  // namespace
}  // namespace millrace::dataplane::worker
