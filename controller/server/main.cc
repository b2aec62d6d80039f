#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>
#include <system_error>

#include "api/admin/process.h"
#include "common/annotate.h"
#include "common/hex.h"
#include "common/http/rest_server.h"
#include "common/log/log.h"
#include "common/mapped_file.h"
#include "common/metrics/metrics.h"
#include "common/process/shutdown_signal.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "controller/server/routes.h"
#include "controller/server/service.h"
#include "controller/state/store.h"
#include "dataplane/routing/buckets.h"

namespace millrace::controller::server {
namespace {

struct Flags {
  std::string listen = "127.0.0.1:8080";
  std::string data_dir;
  std::string ready_file;
  std::string log_level = "info";
  int heartbeat_ms = 500;
  int node_timeout_ms = 3000;
  int balance_round_ms = 10000;
  int balance_max_moves = 2;
  double balance_min_share_change = 0.05;
  std::string bucket_edges = "16384,65536,262144";
};

void declare(CLI::App& app, Flags& flags) {
  app.add_option("--listen", flags.listen, "host:port of the REST interface; port 0 = any free one")
      ->capture_default_str();
  app.add_option("--data-dir", flags.data_dir, "folder for the cluster's state; created if missing")
      ->required();
  app.add_option("--ready-file", flags.ready_file,
                 "written once the controller serves: one JSON object with pid and address");
  app.add_option("--log-level", flags.log_level, "debug, info, warn, error or off")
      ->capture_default_str();
  app.add_option("--heartbeat-ms", flags.heartbeat_ms, "how often agents report")
      ->check(CLI::Range(10, 60000))
      ->capture_default_str();
  app.add_option("--node-timeout-ms", flags.node_timeout_ms,
                 "a node without a report for so long counts as dead")
      ->check(CLI::Range(20, 600000))
      ->capture_default_str();
  app.add_option("--balance-round-ms", flags.balance_round_ms,
                 "how often prefill instances are split anew over ranges of input lengths")
      ->check(CLI::Range(100, 600000))
      ->capture_default_str();
  app.add_option("--balance-max-moves", flags.balance_max_moves,
                 "prefill instances that change their range in one round, at most")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option(
         "--balance-min-share-change", flags.balance_min_share_change,
         "how far, as a share of all prefill instances, demand must be past the point where "
         "rounding would move one")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--bucket-edges", flags.bucket_edges,
                 "the three input lengths, in tokens, between the four ranges that prefill "
                 "instances are split over")
      ->capture_default_str();
}

absl::Status make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return absl::PermissionDeniedError(
      str_cat("cannot create the folder ", path, ": ", error.message()));
}

/// 128 random bits, so that storage nodes of two clusters never take each other for their own.
std::string new_storage_cluster_id() {
  std::array<std::uint8_t, 16> bytes{};
  std::random_device random;
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return to_hex(bytes);
}

absl::Status run(const Flags& flags) {
  ASSIGN_OR_RETURN(const LogLevel level, parse_log_level(flags.log_level));
  if (flags.node_timeout_ms < 2 * flags.heartbeat_ms) {
    return absl::InvalidArgumentError("--node-timeout-ms must be at least twice --heartbeat-ms");
  }
  const auto edges = dataplane::routing::parse_bucket_edges(flags.bucket_edges);
  if (!edges.ok()) return annotate(edges.status(), "--bucket-edges");
  ASSIGN_OR_RETURN(const ShutdownSignal shutdown, ShutdownSignal::install());
  const Logger log = Logger::to_stderr("controller", level);
  RETURN_IF_ERROR(make_folder(flags.data_dir));
  ASSIGN_OR_RETURN(std::unique_ptr<state::Store> store, state::Store::open(flags.data_dir));
  Registry registry;
  core::ControllerOptions options;
  options.heartbeat_interval = std::chrono::milliseconds(flags.heartbeat_ms);
  options.node_timeout = std::chrono::milliseconds(flags.node_timeout_ms);
  options.balance.round = std::chrono::milliseconds(flags.balance_round_ms);
  options.balance.max_moves = flags.balance_max_moves;
  options.balance.min_share_change = flags.balance_min_share_change;
  options.balance.edges = *edges;
  RETURN_IF_ERROR(core::validate(options.balance));
  options.new_storage_cluster_id = new_storage_cluster_id();
  ASSIGN_OR_RETURN(const std::unique_ptr<Service> service,
                   Service::start(options, std::move(store), log, registry));
  ASSIGN_OR_RETURN(const std::unique_ptr<common::http::RestServer> server,
                   common::http::RestServer::start({.listen = flags.listen}, routes(*service)));
  if (!flags.ready_file.empty()) {
    api::admin::ReadyFile ready;
    ready.pid = getpid();
    ready.address = server->address();
    RETURN_IF_ERROR(write_file_atomically(flags.ready_file, api::admin::to_json(ready)));
  }
  log.info("serving", {{"address", server->address()}});
  while (shutdown.wait_beyond_for(0, std::chrono::milliseconds(500)) == 0) {
    RETURN_IF_ERROR(service->health());
  }
  log.info("stopping");
  server->stop();
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace::controller::server

int main(int argc, char** argv) {
  CLI::App app("Millrace's controller: keeps the cluster as desired and publishes who serves what.",
               "millrace-controller");
  millrace::controller::server::Flags flags;
  millrace::controller::server::declare(app, flags);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = millrace::controller::server::run(flags);
  if (status.ok()) return 0;
  std::cerr << "millrace-controller: " << millrace::message_of(status) << "\n";
  return 1;
}
