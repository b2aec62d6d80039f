// millrace-kvfetch: moves KV blocks between the storage nodes and the shared memory of one machine.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "common/json.h"
#include "common/log/log.h"
#include "common/mapped_file.h"
#include "common/metrics/metrics.h"
#include "common/process/shutdown_signal.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/client/store_client.h"
#include "storage/fetch/fetch_server.h"
#include "storage/fetch/store_block_io.h"

namespace millrace::storage::fetch {
namespace {

/// How long a fetcher that was told to stop lets fetches and stores go on. Engines find the rest
/// missing, and compute it.
constexpr auto kDrainTime = std::chrono::seconds(10);
/// How often the first map is looked for in the cell.
constexpr auto kMapInterval = std::chrono::milliseconds(50);

struct Options {
  std::string listen;
  std::string host_id;
  std::string map_path;
  std::string controller;
  std::string metrics = "127.0.0.1:0";
  std::uint32_t block_bytes = 0;
  std::size_t arena_mib = 1024;
  std::size_t write_arena_mib = 128;
  std::uint32_t window_bytes = 0;
  std::size_t window_pool_bytes = std::size_t{1} << 30;
  std::string window_listen = "127.0.0.1:0";
  std::string window_advertise;
  std::int64_t lease_ms = 60'000;
  std::size_t reads_in_flight = 256;
  std::string ready_file;
  std::string log_level = "info";
};

void declare(CLI::App& app, Options& options) {
  app.add_option("--listen", options.listen, "unix:/path of the socket for engines")->required();
  app.add_option("--host-id", options.host_id,
                 "Names this machine; one fetcher runs under it at a time")
      ->required();
  app.add_option("--map", options.map_path,
                 "File with the storage map; kept up to date when there is a controller");
  app.add_option("--controller", options.controller,
                 "http://host:port of the controller, which is asked for newer maps");
  app.add_option("--block-bytes", options.block_bytes,
                 "Size of the largest block; 0: what the storage map says")
      ->capture_default_str();
  app.add_option("--arena-mib", options.arena_mib, "Shared memory for fetched blocks, MiB")
      ->check(CLI::Range(1, 64 << 20))
      ->capture_default_str();
  app.add_option("--write-arena-mib", options.write_arena_mib, "Shared memory for new blocks, MiB")
      ->check(CLI::Range(1, 64 << 20))
      ->capture_default_str();
  app.add_option("--window-bytes", options.window_bytes,
                 "Size of the largest sliding window; 0: no windows are kept")
      ->check(CLI::Range(0u, kMaxWindowBytes))
      ->capture_default_str();
  app.add_option("--window-pool-bytes", options.window_pool_bytes,
                 "Shared memory for sliding windows, if any are kept")
      ->capture_default_str();
  app.add_option("--window-listen", options.window_listen,
                 "host:port at which other machines read windows of this one; port 0: any free one")
      ->capture_default_str();
  app.add_option("--window-advertise", options.window_advertise,
                 "host:port at which other machines find that; empty: where it listens");
  app.add_option("--lease-ms", options.lease_ms,
                 "How long an engine may keep a fetched block or a reserved slot")
      ->check(CLI::Range(100, 3'600'000))
      ->capture_default_str();
  app.add_option("--reads", options.reads_in_flight, "Blocks that are read at one time")
      ->check(CLI::Range(1, 65'536))
      ->capture_default_str();
  app.add_option("--metrics", options.metrics, "host:port of /metrics; port 0: any free one")
      ->capture_default_str();
  app.add_option("--ready-file", options.ready_file,
                 "Written once the fetcher serves: pid and addresses as JSON");
  app.add_option("--log-level", options.log_level, "debug, info, warn, error or off")
      ->capture_default_str();
}

std::uint64_t random_bits() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

/// The size of blocks, from the map if it was not given. Waits for the first map, or for the end.
absl::StatusOr<std::uint32_t> block_size(const Options& options, const client::StoreClient& store,
                                         const ShutdownSignal& shutdown) {
  if (options.block_bytes != 0) return options.block_bytes;
  while (store.map() == nullptr) {
    if (options.controller.empty()) {
      return absl::NotFoundError(str_cat("there is no storage map in ", options.map_path,
                                         ", and no --controller to ask for one"));
    }
    if (shutdown.wait_beyond_for(0, kMapInterval) > 0) {
      return absl::CancelledError("stopped before the controller gave a storage map");
    }
  }
  return store.map()->block_bytes;
}

absl::Status write_ready_file(const Options& options, const MetricsServer& metrics) {
  if (options.ready_file.empty()) return absl::OkStatus();
  const Json ready = {
      {"pid", ::getpid()}, {"address", options.listen}, {"metrics_address", metrics.address()}};
  return write_file_atomically(options.ready_file, dump_json(ready) + "\n");
}

absl::Status drain(FetchServer& server, const ShutdownSignal& shutdown) {
  server.begin_drain();
  const auto deadline = std::chrono::steady_clock::now() + kDrainTime;
  while (!server.wait_drained(std::chrono::milliseconds(50))) {
    if (shutdown.count() > 1) return absl::AbortedError("told twice to stop: fetches were cut off");
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError("fetches were cut off at the end of the drain time");
    }
  }
  return absl::OkStatus();
}

absl::Status run(const Options& options, const Logger& log) {
  if (options.map_path.empty() && options.controller.empty()) {
    return absl::InvalidArgumentError("--map or --controller is needed to find the storage nodes");
  }
  ASSIGN_OR_RETURN(const ShutdownSignal shutdown, ShutdownSignal::install());
  Registry registry;
  ASSIGN_OR_RETURN(std::unique_ptr<client::StoreClient> store,
                   client::StoreClient::open({.controller_url = options.controller,
                                              .map_path = options.map_path,
                                              .registry = &registry},
                                             log));
  ASSIGN_OR_RETURN(const std::uint32_t block_bytes, block_size(options, *store, shutdown));
  auto io = std::make_unique<StoreBlockIo>(std::move(store));

  FetchServerConfig config;
  config.listen_address = options.listen;
  config.host_id = options.host_id;
  config.incarnation = random_bits();
  config.block_bytes = block_bytes;
  config.read_arena_bytes = options.arena_mib << 20;
  config.write_arena_bytes = options.write_arena_mib << 20;
  config.limits.lease = std::chrono::milliseconds(options.lease_ms);
  config.windows.window_bytes = options.window_bytes;
  config.windows.pool_bytes = options.window_pool_bytes;
  config.windows.listen_address = options.window_listen;
  config.windows.advertise_address = options.window_advertise;
  config.windows.limits.lease = config.limits.lease;
  config.limits.max_reads_in_flight = options.reads_in_flight;
  ASSIGN_OR_RETURN(const std::unique_ptr<FetchServer> server,
                   FetchServer::start(config, std::move(io), registry, log));
  ASSIGN_OR_RETURN(const std::unique_ptr<MetricsServer> metrics,
                   MetricsServer::start(options.metrics, registry));
  RETURN_IF_ERROR(write_ready_file(options, *metrics));
  log.info("kvfetch_ready", {{"host_id", options.host_id},
                             {"address", options.listen},
                             {"window_address", server->window_address()},
                             {"metrics_address", metrics->address()},
                             {"block_bytes", block_bytes}});

  shutdown.wait_beyond(0);
  log.info("kvfetch_draining", {{"host_id", options.host_id}});
  RETURN_IF_ERROR(drain(*server, shutdown));
  log.info("kvfetch_stopped", {{"host_id", options.host_id}});
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace::storage::fetch

int main(int argc, char** argv) {
  using namespace millrace;  // NOLINT(build/namespaces): main is not in our namespace
  CLI::App app("Moves KV blocks between storage nodes and this machine's shared memory.",
               "millrace-kvfetch");
  storage::fetch::Options options;
  storage::fetch::declare(app, options);
  CLI11_PARSE(app, argc, argv);
  const auto level = parse_log_level(options.log_level);
  if (!level.ok()) {
    std::cerr << "millrace-kvfetch: " << message_of(level.status()) << "\n";
    return 2;
  }
  const Logger log = Logger::to_stderr("kvfetch", *level);
  const absl::Status status = storage::fetch::run(options, log);
  if (status.ok()) return 0;
  log.error("kvfetch_failed", {{"reason", message_of(status)}});
  return 1;
}
