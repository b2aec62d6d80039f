// millrace-seal-bench: what storing the KV that decoding fills costs the worker that decodes.
//
// Nano's text is decoded twice: without a store, and with every full block and window going to a
// fetcher in this process that stores nothing. So the fetcher's and the storage nodes' own work,
// which on a machine with few cores takes its time from the same cores, is left out.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "common/check.h"
#include "common/json.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/engine/engine.h"
#include "dataplane/model/checkpoint.h"
#include "dataplane/transfer/export_table.h"
#include "dataplane/worker/command_queue.h"
#include "dataplane/worker/core.h"
#include "dataplane/worker/kv_link.h"
#include "storage/fetch/fetch_client.h"
#include "storage/fetch/fetch_server.h"
#include "tests/bench/stopwatch.h"

namespace millrace::tests::bench {
namespace {

using dataplane::worker::Core;
using dataplane::worker::KvJobs;
using dataplane::worker::KvLink;
using dataplane::worker::RequestSpec;
using dataplane::worker::Role;
using storage::fetch::FetchEnd;
using storage::fetch::StoreEnd;

constexpr int kPromptTokens = 64;
constexpr dataplane::worker::StreamId kStream = 1;

struct Options {
  std::string model = "deploy/models/nano";
  int tokens = 1024;
  int rounds = 9;
  bool is_json = false;
};

/// Takes every block and keeps none.
class Sink final : public storage::fetch::BlockIo {
 public:
  explicit Sink(std::atomic<int>& taken) : taken_(taken) {}
  void read(const storage::BlockKey&, std::span<std::byte>, std::chrono::milliseconds,
            ReadDone done) override {
    done(FetchEnd::kNotFound);
  }
  void store(NewBlock, std::chrono::milliseconds, StoreDone done) override {
    ++taken_;
    done(StoreEnd::kStored);
  }

 private:
  std::atomic<int>& taken_;
};

/// A worker without sockets: its turns are this thread's.
struct Worker {
  std::unique_ptr<dataplane::engine::Engine> engine;
  std::unique_ptr<dataplane::transfer::ExportTable> exports;
  std::unique_ptr<Core> core;
};

absl::StatusOr<Worker> open_worker(const dataplane::model::Checkpoint& checkpoint, Role role) {
  Worker worker;
  const std::string id = str_cat("seal-", role == Role::kPrefill ? "p" : "d", "-", ::getpid());
  ASSIGN_OR_RETURN(worker.engine,
                   dataplane::engine::open_cpu_engine(
                       checkpoint, {}, {.kv_blocks = 64, .max_sequences = 2, .threads = 1}));
  ASSIGN_OR_RETURN(worker.exports, dataplane::transfer::ExportTable::open(
                                       {.host_id = "bench", .worker_id = id}, 1, {}));
  ASSIGN_OR_RETURN(worker.core, Core::create({.role = role,
                                              .worker_id = id,
                                              .host_id = "bench",
                                              .transfer_address = "127.0.0.1:1",
                                              .eos_tokens = {},
                                              .limits = {.max_sequences = 2, .kv_blocks = 64}},
                                             *worker.engine, *worker.exports));
  worker.core->on_command(dataplane::worker::OpenStream{kStream});
  return worker;
}

struct Cost {
  double wall_ms = 0;    ///< for a token
  double thread_ms = 0;  ///< of the engine's thread on a core
};

/// Prefill and decode worker, a fetcher, and the link between.
class Bench {
 public:
  static absl::StatusOr<std::unique_ptr<Bench>> open(const Options& options);

  /// Decodes the text once, with or without its KV going to the fetcher.
  Cost decode(std::uint64_t seed, int tokens, bool has_store);
  int blocks_taken() const { return taken_; }

 private:
  void hand_over(RequestSpec& spec, dataplane::transfer::Handover& handover);
  absl::Status start_fetcher(const std::string& address);
  void wait_until_taken(int blocks);

  std::unique_ptr<dataplane::model::Checkpoint> checkpoint_;
  Worker prefill_;
  Worker decode_;
  std::atomic<int> taken_ = 0;
  Registry fetcher_metrics_;
  Registry link_metrics_;
  const Logger log_ = Logger::to_stderr("bench", LogLevel::kError);
  dataplane::worker::CommandQueue commands_{dataplane::worker::CommandQueueLimits{}};
  std::unique_ptr<storage::fetch::FetchServer> fetcher_;
  std::unique_ptr<KvLink> link_;
  std::uint32_t attempt_ = 0;
};

absl::StatusOr<std::unique_ptr<Bench>> Bench::open(const Options& options) {
  auto bench = std::make_unique<Bench>();
  ASSIGN_OR_RETURN(bench->checkpoint_, dataplane::model::Checkpoint::open(options.model));
  ASSIGN_OR_RETURN(bench->prefill_, open_worker(*bench->checkpoint_, Role::kPrefill));
  ASSIGN_OR_RETURN(bench->decode_, open_worker(*bench->checkpoint_, Role::kDecode));
  const std::string address = str_cat("unix:/tmp/millrace-seal-", ::getpid(), ".sock");
  RETURN_IF_ERROR(bench->start_fetcher(address));
  bench->link_ = std::make_unique<KvLink>(
      [address] {
        return storage::fetch::FetchClient::connect({.address = address, .client_id = "bench"});
      },
      static_cast<std::uint32_t>(bench->decode_.engine->block_bytes()), bench->commands_,
      bench->link_metrics_, bench->log_, KvLink::Limits{});
  return bench;
}

absl::Status Bench::start_fetcher(const std::string& address) {
  storage::fetch::FetchServerConfig config;
  config.listen_address = address;
  config.host_id = str_cat("seal-", ::getpid());
  config.incarnation = 1;
  config.block_bytes = static_cast<std::uint32_t>(decode_.engine->block_bytes());
  config.read_arena_bytes = std::size_t{4} << 20;
  config.write_arena_bytes = std::size_t{4} << 20;
  config.windows.window_bytes = static_cast<std::uint32_t>(decode_.engine->window_bytes());
  config.windows.pool_bytes = std::size_t{4} << 20;
  ASSIGN_OR_RETURN(fetcher_, storage::fetch::FetchServer::start(
                                 config, std::make_unique<Sink>(taken_), fetcher_metrics_, log_));
  return absl::OkStatus();
}

/// Prefills the prompt: its first token, and where its KV lies.
void Bench::hand_over(RequestSpec& spec, dataplane::transfer::Handover& handover) {
  prefill_.core->on_command(dataplane::worker::StartPrefill{spec});
  while (true) {
    for (auto& batch : prefill_.core->run_turn(std::chrono::steady_clock::now()).batches) {
      for (auto& event : batch.events) {
        const auto* first = std::get_if<dataplane::worker::Prefilled>(&event.what);
        CHECK(first != nullptr && first->handover, "a prompt of ordinary tokens is prefilled");
        spec.tokens.push_back(first->token.token);
        handover = *first->handover;
        return;
      }
    }
  }
}

void Bench::wait_until_taken(int blocks) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (taken_ < blocks) {
    CHECK(std::chrono::steady_clock::now() < deadline, "the fetcher takes every block");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Cost Bench::decode(std::uint64_t seed, int tokens, bool has_store) {
  std::mt19937_64 random(seed);
  RequestSpec spec;
  spec.stream = kStream;
  spec.key = {"bench", ++attempt_};
  spec.prompt_tokens = kPromptTokens;
  for (int i = 0; i < kPromptTokens; ++i)
    spec.tokens.push_back(static_cast<TokenId>(300 + random() % 1000));
  spec.sampling.temperature = 0;
  spec.sampling.ignore_eos = true;
  spec.sampling.max_new_tokens = tokens;
  spec.deadline = std::chrono::steady_clock::now() + std::chrono::hours(1);
  dataplane::transfer::Handover handover;
  hand_over(spec, handover);
  if (has_store) {
    auto& scope = spec.kv.emplace();
    for (std::size_t i = 0; i < scope.root.bytes.size(); ++i)
      scope.root.bytes[i] = static_cast<std::uint8_t>(random());
  }
  const int taken_before = taken_;
  decode_.core->on_command(dataplane::worker::StartDecode{spec, handover});
  bool is_over = false;
  const Stopwatch wall(ClockKind::kWall);
  const Stopwatch thread(ClockKind::kCpu);
  while (!is_over) {
    for (auto& command : commands_.pop_all(std::chrono::nanoseconds::zero()))
      decode_.core->on_command(std::move(command));
    auto output = decode_.core->run_turn(std::chrono::steady_clock::now());
    link_->take(decode_.core->take_kv_jobs());
    for (const auto& job : output.imports) {
      const auto region = prefill_.exports->find(job.handover.export_id);
      CHECK(region.ok(), "the hand-over is there");
      const std::span<const std::byte> bytes = (*region)->bytes();
      decode_.core->on_command(dataplane::worker::ImportDone{
          job.request,
          dataplane::transfer::KvBytes(std::vector<std::byte>(bytes.begin(), bytes.end()))});
    }
    for (const auto& job : output.releases) prefill_.exports->release(job.export_id);
    for (const auto& batch : output.batches) {
      for (const auto& event : batch.events) {
        const auto* sampled = std::get_if<dataplane::worker::Sampled>(&event.what);
        is_over |= sampled != nullptr && sampled->finish != dataplane::worker::FinishReason::kNone;
      }
    }
  }
  const Cost cost{1000 * wall.seconds() / tokens, 1000 * thread.seconds() / tokens};
  if (has_store) wait_until_taken(taken_before + (kPromptTokens + tokens - 1) / 128);
  return cost;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::Status run(const Options& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::open(options));
  bench->decode(0, 256, false);
  // The link needs a moment to connect; until then it takes no block.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  bench->decode(0, 256, true);
  std::vector<double> plain, stored, wall_ratio, thread_ratio;
  for (int round = 0; round < options.rounds; ++round) {
    Cost costs[2];
    // In turn, and in changing order: what else the machine does hits both.
    for (const bool has_store : {round % 2 == 0, round % 2 != 0})
      costs[has_store ? 1 : 0] =
          bench->decode(static_cast<std::uint64_t>(round) + 1, options.tokens, has_store);
    plain.push_back(costs[0].thread_ms);
    stored.push_back(costs[1].thread_ms);
    wall_ratio.push_back(costs[1].wall_ms / costs[0].wall_ms);
    thread_ratio.push_back(costs[1].thread_ms / costs[0].thread_ms);
  }
  if (options.is_json) {
    std::cout << dump_json(Json{{"tokens", options.tokens},
                                {"plain_ms", median(plain)},
                                {"stored_ms", median(stored)},
                                {"thread_ratio", median(thread_ratio)},
                                {"wall_ratio", median(wall_ratio)},
                                {"blocks", bench->blocks_taken()}})
              << "\n";
  } else {
    std::cout << "time of the engine's thread on a core, ms a token: " << median(plain)
              << " without a store, " << median(stored) << " with; ratio " << median(thread_ratio)
              << " (median of pairs), by the wall clock " << median(wall_ratio) << "; "
              << bench->blocks_taken() << " blocks went to the fetcher\n";
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace::tests::bench

int main(int argc, char** argv) {
  CLI::App app("What storing KV costs a decoding worker, beside the same texts without a store.",
               "millrace-seal-bench");
  millrace::tests::bench::Options options;
  app.add_option("--model", options.model, "folder of the checkpoint")->capture_default_str();
  app.add_option("--tokens", options.tokens, "tokens of a text")
      ->check(CLI::Range(256, 4096))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "pairs of runs")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--json", options.is_json, "one JSON object");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = millrace::tests::bench::run(options);
  if (status.ok()) return 0;
  std::cerr << "millrace-seal-bench: " << millrace::message_of(status) << "\n";
  return 1;
}
