// millrace-worker: one engine process, for prefill or for decode.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "common/hex.h"
#include "common/json.h"
#include "common/log/log.h"
#include "common/mapped_file.h"
#include "common/metrics/metrics.h"
#include "common/process/shutdown_signal.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/cost/cost_file.h"
#include "dataplane/engine/engine.h"
#include "dataplane/model/checkpoint.h"
#include "dataplane/worker/worker_server.h"

namespace millrace::dataplane::worker {
namespace {

/// How long a worker that was told to stop lets its requests go on. What is left then goes on
/// elsewhere: its entrypoints see the stream break.
constexpr auto kDrainTime = std::chrono::seconds(30);

struct Options {
  std::string role;
  std::string model;
  std::string model_id;
  std::string worker_id;
  std::string host_id;
  std::string listen = "127.0.0.1:0";
  std::string advertise;
  std::string metrics = "127.0.0.1:0";
  std::string engine;
  std::string kv_fetch;
  /// A cancel waits for the step under way: 256 rows keep that well under a second on a busy CPU,
  /// where 512 rows of a long context were seen to take most of one.
  engine::EngineLimits limits{.max_step_rows = 256, .threads = 0};
  double step_budget_ms = 300;
  double share_cap = 1;
  std::string cost_file;
  std::string ready_file;
  std::string log_level = "info";
};

void declare(CLI::App& app, Options& options) {
  app.add_option("--role", options.role, "prefill or decode")
      ->required()
      ->check(CLI::IsMember({"prefill", "decode"}));
  app.add_option("--model", options.model, "Folder of the checkpoint")->required();
  app.add_option("--model-id", options.model_id, "Name under which the model is served")
      ->required();
  app.add_option("--worker-id", options.worker_id, "Name of this worker, stable over restarts")
      ->required();
  app.add_option("--host-id", options.host_id,
                 "Workers with equal host ids hand over through shared memory")
      ->required();
  app.add_option("--listen", options.listen, "host:port to listen on; port 0: any free one")
      ->capture_default_str();
  app.add_option("--advertise", options.advertise,
                 "host:port under which other workers reach this one (default: where it listens)");
  app.add_option("--metrics", options.metrics, "host:port of /metrics; port 0: any free one")
      ->capture_default_str();
  app.add_option("--engine", options.engine,
                 "Switches for comparisons, for example rounding=off,decoder_replay=off");
  app.add_option("--kv-blocks", options.limits.kv_blocks, "Blocks of 128 tokens in the KV pool")
      ->capture_default_str();
  app.add_option("--max-sequences", options.limits.max_sequences, "Requests that run at one time")
      ->capture_default_str();
  app.add_option("--step-rows", options.limits.max_step_rows, "Tokens of one engine step")
      ->capture_default_str();
  app.add_option("--step-budget-ms", options.step_budget_ms,
                 "Predicted compute of a prefill step at most; a prefill worker claims requests "
                 "while less than two steps are queued")
      ->check(CLI::Range(1.0, 60'000.0))
      ->capture_default_str();
  app.add_option("--share-cap", options.share_cap,
                 "Share of a step's budget for one prefill while others wait; 1: no limit")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  app.add_option("--cost-file", options.cost_file,
                 "What `millrace bench fit` wrote for this model on this kind of machine; without "
                 "it, costs are learnt from steps");
  app.add_option("--threads", options.limits.threads,
                 "Threads that compute a step; 0: one for each core this process may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--kv-fetch", options.kv_fetch,
                 "Address of this machine's KV fetcher (unix:/PATH); empty: no KV is fetched or "
                 "stored");
  app.add_option("--ready-file", options.ready_file,
                 "Written once the worker serves: pid, addresses, model, digest as JSON");
  app.add_option("--log-level", options.log_level, "debug, info, warn, error or off")
      ->capture_default_str();
}

engine::EngineLimits engine_limits(const Options& options) {
  engine::EngineLimits limits = options.limits;
  if (limits.threads == 0) {
    limits.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  return limits;
}

/// A worker that listens everywhere cannot know the address that others see.
absl::Status check_addresses(const Options& options) {
  const std::string host = options.listen.substr(0, options.listen.rfind(':'));
  if ((host == "0.0.0.0" || host == "[::]") && options.advertise.empty()) {
    return absl::InvalidArgumentError(str_cat(
        "--listen ", options.listen, " needs --advertise host:port, which other workers call"));
  }
  return absl::OkStatus();
}

/// The costs of the file, if there is one and it is of this engine.
absl::StatusOr<std::optional<cost::CostModel>> read_costs(const Options& options,
                                                          const std::string& digest_hex) {
  if (options.cost_file.empty()) return std::nullopt;
  ASSIGN_OR_RETURN(const std::string text, read_file(options.cost_file));
  ASSIGN_OR_RETURN(const cost::CostFile file, cost::parse_cost_file(text, options.cost_file));
  const cost::CostSubject engine{
      .model_id = options.model_id, .artifact_digest = digest_hex, .backend = "cpu", .machine = {}};
  RETURN_IF_ERROR(cost::check_subject(file, engine, options.cost_file));
  return file.prefill;
}

absl::Status write_ready_file(const Options& options, const WorkerServer& server,
                              const MetricsServer& metrics, const std::string& digest_hex) {
  if (options.ready_file.empty()) return absl::OkStatus();
  const Json ready = {
      {"pid", ::getpid()},
      {"address", options.advertise.empty() ? server.address() : options.advertise},
      {"metrics_address", metrics.address()},
      {"model_id", options.model_id},
      {"artifact_digest", digest_hex},
  };
  return write_file_atomically(options.ready_file, dump_json(ready) + "\n");
}

absl::Status run(const Options& options, const Logger& log) {
  RETURN_IF_ERROR(check_addresses(options));
  ASSIGN_OR_RETURN(const ShutdownSignal shutdown, ShutdownSignal::install());
  ASSIGN_OR_RETURN(const engine::EngineSwitches switches,
                   engine::parse_engine_switches(options.engine));
  ASSIGN_OR_RETURN(const std::unique_ptr<model::Checkpoint> checkpoint,
                   model::Checkpoint::open(options.model));
  ASSIGN_OR_RETURN(std::unique_ptr<engine::Engine> engine,
                   engine::open_cpu_engine(*checkpoint, switches, engine_limits(options)));
  const auto& digest = checkpoint->artifact_digest();

  Registry registry;
  WorkerConfig config;
  config.role = options.role == "prefill" ? Role::kPrefill : Role::kDecode;
  config.worker_id = options.worker_id;
  config.host_id = options.host_id;
  config.identity.model_id = options.model_id;
  config.identity.artifact_digest.assign(digest.begin(), digest.end());
  config.listen_address = options.listen;
  config.advertise_address = options.advertise;
  if (switches.decoder_replay == engine::Switch::kOn) {
    config.kv_fetch = options.kv_fetch;
  } else if (!options.kv_fetch.empty()) {
    log.warn("kv_store_unused", {{"reason", "decoder_replay=off needs every row of a prompt"}});
  }
  config.eos_tokens = {checkpoint->config().eos_token_id};
  config.limits.max_step_rows = options.limits.max_step_rows;
  config.limits.max_sequences = options.limits.max_sequences;
  config.limits.kv_blocks = options.limits.kv_blocks;
  config.limits.step_budget_ns = options.step_budget_ms * 1e6;
  config.limits.share_cap = options.share_cap;
  const std::string digest_hex = to_hex(digest);
  ASSIGN_OR_RETURN(config.prefill_cost, read_costs(options, digest_hex));
  ASSIGN_OR_RETURN(const std::unique_ptr<WorkerServer> server,
                   WorkerServer::start(config, std::move(engine), registry, log));
  ASSIGN_OR_RETURN(const std::unique_ptr<MetricsServer> metrics,
                   MetricsServer::start(options.metrics, registry));
  RETURN_IF_ERROR(write_ready_file(options, *server, *metrics, digest_hex));
  log.info("worker_ready", {{"worker_id", options.worker_id},
                            {"role", options.role},
                            {"address", server->address()},
                            {"metrics_address", metrics->address()},
                            {"artifact_digest", digest_hex}});

  shutdown.wait_beyond(0);
  log.info("worker_draining", {{"worker_id", options.worker_id}});
  server->begin_drain();
  const auto deadline = std::chrono::steady_clock::now() + kDrainTime;
  while (!server->wait_drained(std::chrono::milliseconds(50))) {
    if (shutdown.count() > 1)
      return absl::AbortedError("told twice to stop: requests were cut off");
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError("requests were cut off at the end of the drain time");
    }
  }
  log.info("worker_stopped", {{"worker_id", options.worker_id}});
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace::dataplane::worker

int main(int argc, char** argv) {
  using namespace millrace;  // NOLINT(build/namespaces): main is not in our namespace
  CLI::App app("One engine process of a Millrace cluster.", "millrace-worker");
  dataplane::worker::Options options;
  dataplane::worker::declare(app, options);
  CLI11_PARSE(app, argc, argv);
  const auto level = parse_log_level(options.log_level);
  if (!level.ok()) {
    std::cerr << "millrace-worker: " << message_of(level.status()) << "\n";
    return 2;
  }
  const Logger log = Logger::to_stderr("worker", *level);
  const absl::Status status = dataplane::worker::run(options, log);
  if (status.ok()) return 0;
  log.error("worker_failed", {{"reason", message_of(status)}});
  return 1;
}
