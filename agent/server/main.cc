#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>

#include "agent/server/agent.h"
#include "agent/server/routes.h"
#include "api/admin/id.h"
#include "api/admin/process.h"
#include "common/http/rest_server.h"
#include "common/log/log.h"
#include "common/mapped_file.h"
#include "common/metrics/metrics.h"
#include "common/process/shutdown_signal.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::agent::server {
namespace {

struct Flags {
  std::string controller;
  std::string node_id;
  std::string host_id;
  std::string listen = "127.0.0.1:0";
  std::string data_dir;
  std::string bin_dir;
  std::string ready_file;
  std::string log_level = "info";
  int start_timeout_s = 600;
  int stop_grace_s = 90;
  int worker_threads = 0;
  std::string cluster_secret;
  std::string api_keys;
};

void declare(CLI::App& app, Flags& flags) {
  app.add_option("--controller", flags.controller, "URL of the controller, http://host:port")
      ->required();
  app.add_option("--node-id", flags.node_id, "this node's name in the cluster")->required();
  app.add_option(
      "--host-id", flags.host_id,
      "nodes with equal host ids share memory, so two clusters on one machine need two; by "
      "default the node's name");
  app.add_option("--listen", flags.listen,
                 "host:port of the agent's REST interface; its workers listen on the same host, so "
                 "it must be an address that the other nodes reach")
      ->capture_default_str();
  app.add_option("--data-dir", flags.data_dir, "folder for logs and run files; created if missing")
      ->required();
  app.add_option("--bin-dir", flags.bin_dir,
                 "where the other programs are; by default beside this one");
  app.add_option("--ready-file", flags.ready_file,
                 "written once the agent serves: one JSON object with pid and address");
  app.add_option("--log-level", flags.log_level,
                 "debug, info, warn, error or off; also for the processes it starts")
      ->capture_default_str();
  app.add_option("--start-timeout-s", flags.start_timeout_s,
                 "a process that is not ready after so long is killed; large models load slowly")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  app.add_option(
         "--worker-threads", flags.worker_threads,
         "threads of every engine process: this node's cores divided by the engine processes it "
         "runs; 0: each takes all cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option(
      "--cluster-secret", flags.cluster_secret,
      "file of 32 bytes that entrypoints make the names of stored KV of; without it they "
      "neither look for KV nor have any stored");
  app.add_option("--api-keys", flags.api_keys,
                 "file of the keys that entrypoints take requests with; without it they take them "
                 "from everybody");
  app.add_option("--stop-grace-s", flags.stop_grace_s,
                 "how long a process may drain before it is killed; more than its own limit")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
}

absl::StatusOr<std::string> own_folder() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::NotFoundError("cannot tell where this program lies; pass --bin-dir");
  return program.parent_path().string();
}

/// Workers advertise this host to the other nodes.
absl::StatusOr<std::string> listen_host(const std::string& listen) {
  const std::string host = listen.substr(0, listen.rfind(':'));
  if (host != "0.0.0.0" && host != "*" && host != "[::]") return host;
  return absl::InvalidArgumentError(
      str_cat("--listen ", listen, ": name the address that the other nodes reach this one at, ",
              "because the workers listen and are found there"));
}

absl::StatusOr<AgentOptions> agent_options(const Flags& flags) {
  AgentOptions options;
  supervisor::NodeSettings& node = options.supervisor.node;
  node.node_id = flags.node_id;
  node.host_id = flags.host_id.empty() ? flags.node_id : flags.host_id;
  for (const std::string& id : {node.node_id, node.host_id}) {
    if (!api::admin::is_plain_id(id)) return api::admin::plain_id_error(id);
  }
  ASSIGN_OR_RETURN(node.listen_host, listen_host(flags.listen));
  node.controller_url = flags.controller;
  while (node.controller_url.ends_with('/')) node.controller_url.pop_back();
  if (!node.controller_url.starts_with("http://")) {
    return absl::InvalidArgumentError("--controller must be a URL like http://127.0.0.1:8080");
  }
  node.log_level = flags.log_level;
  node.worker_threads = flags.worker_threads;
  node.cluster_secret = flags.cluster_secret;
  node.api_keys = flags.api_keys;
  node.bin_dir = flags.bin_dir;
  if (node.bin_dir.empty()) {
    ASSIGN_OR_RETURN(node.bin_dir, own_folder());
  }
  options.supervisor.data_dir = flags.data_dir;
  options.supervision.start_timeout = std::chrono::seconds(flags.start_timeout_s);
  options.supervision.stop_grace = std::chrono::seconds(flags.stop_grace_s);
  return options;
}

absl::Status write_ready_file(const std::string& path, const std::string& address) {
  if (path.empty()) return absl::OkStatus();
  api::admin::ReadyFile ready;
  ready.pid = getpid();
  ready.address = address;
  return write_file_atomically(path, api::admin::to_json(ready));
}

absl::Status serve(const Flags& flags, Agent& agent, const std::string& address,
                   const ShutdownSignal& shutdown, const Logger& log) {
  RETURN_IF_ERROR(write_ready_file(flags.ready_file, address));
  log.info("serving", {{"address", address}, {"node_id", flags.node_id}});
  return agent.run([&] { return shutdown.count(); }, shutdown.fd());
}

absl::Status run(const Flags& flags) {
  ASSIGN_OR_RETURN(const LogLevel level, parse_log_level(flags.log_level));
  ASSIGN_OR_RETURN(AgentOptions options, agent_options(flags));
  ASSIGN_OR_RETURN(const ShutdownSignal shutdown, ShutdownSignal::install());
  const Logger log = Logger::to_stderr("agent", level);
  ASSIGN_OR_RETURN(NodeLock lock, NodeLock::take(flags.data_dir));
  Registry registry;
  telemetry::AgentMetrics metrics(registry);

  // The listener's address is part of what the agent tells the controller, and the listener's
  // answers come from the agent: the listener starts first and says "starting" until then.
  std::atomic<const Agent*> running = nullptr;
  const auto state = [&] {
    const Agent* agent = running.load();
    return agent == nullptr ? api::admin::AgentState{} : agent->state();
  };
  ASSIGN_OR_RETURN(
      const std::unique_ptr<common::http::RestServer> server,
      common::http::RestServer::start({.listen = flags.listen}, routes(state, registry)));
  options.address = server->address();
  ASSIGN_OR_RETURN(const std::unique_ptr<Agent> agent,
                   Agent::create(options, std::move(lock), log, metrics));
  running = agent.get();
  absl::Status status = serve(flags, *agent, server->address(), shutdown, log);
  server->stop();  // before the agent that its answers come from goes
  return status;
}

}  // namespace
}  // namespace millrace::agent::server

int main(int argc, char** argv) {
  CLI::App app("Millrace's agent: runs and watches this node's engines and entrypoints.",
               "millrace-agent");
  millrace::agent::server::Flags flags;
  millrace::agent::server::declare(app, flags);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = millrace::agent::server::run(flags);
  if (status.ok()) return 0;
  std::cerr << "millrace-agent: " << millrace::message_of(status) << "\n";
  return 1;
}
