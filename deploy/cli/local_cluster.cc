#include "deploy/cli/local_cluster.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "api/admin/process.h"
#include "common/annotate.h"
#include "common/hex.h"
#include "common/mapped_file.h"
#include "common/process/child_process.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "deploy/cli/admin_client.h"
#include "deploy/cli/block_keys.h"
#include "deploy/cli/cluster_secret.h"
#include "deploy/cli/listen_address.h"

namespace millrace::deploy::cli {
namespace {

using Clock = std::chrono::steady_clock;
using api::admin::DesiredState;
using api::admin::InstanceInfo;
using api::admin::InstanceWorker;
using api::admin::ProcessRole;

constexpr std::chrono::seconds kServerStart{20};  // for controller and agent
constexpr std::chrono::seconds kLongEnough{30};   // a server that lived so long may be restarted
constexpr int kMostQuickDeaths = 5;               // in a row, before giving up
constexpr std::chrono::milliseconds kRestartPause{1000};
constexpr std::chrono::milliseconds kPollPause{100};
constexpr int kRecordPauseMs = 500;
constexpr std::chrono::seconds kAgentGrace{100};  // more than it allows its own processes
constexpr std::chrono::seconds kControllerGrace{10};

// Memory for fetched blocks: a part of what is stored, and little enough for a laptop.
constexpr std::int64_t kStoredPerFetched = 8;
constexpr std::int64_t kLeastFetchBytes = 16 << 20;
constexpr std::int64_t kMostFetchBytes = 256 << 20;
// Sliding windows of the last three minutes: those of a few people at one machine.
constexpr std::int64_t kKeptWindows = 64;

/// Engine processes share the cores of this machine: more threads than cores would only fight.
int threads_per_worker(int workers) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / std::max(1, workers));
}

/// One of the two servers that this process runs itself.
struct Server {
  std::string name;
  ChildSpec spec;
  std::string ready_file;
  std::optional<ChildProcess> child = std::nullopt;
  Clock::time_point started = {};
  int quick_deaths = 0;

  absl::Status start() {
    std::error_code ignored;  // there is none yet, usually
    std::filesystem::remove(ready_file, ignored);
    started = Clock::now();
    ASSIGN_OR_RETURN(child, ChildProcess::start(spec));
    return absl::OkStatus();
  }
};

/// The last lines of a log, for a message about why its writer died.
std::string tail_of(const std::string& path) {
  const absl::StatusOr<std::string> text = read_file(path);
  if (!text.ok()) return {};
  std::string_view tail = *text;
  while (tail.ends_with('\n')) tail.remove_suffix(1);
  std::size_t begin = tail.size();
  for (int lines = 0; lines < 3 && begin != std::string_view::npos && begin > 0; ++lines) {
    begin = tail.rfind('\n', begin - 1);
  }
  if (begin != std::string_view::npos && begin < tail.size()) tail.remove_prefix(begin + 1);
  return std::string(tail.substr(tail.size() - std::min<std::size_t>(tail.size(), 2000)));
}

absl::Status died(const Server& server, const ExitStatus& status) {
  return absl::UnavailableError(str_cat("the ", server.name, " ended with ", describe(status),
                                        "; the end of ", server.spec.output_path, ":\n",
                                        tail_of(server.spec.output_path)));
}

absl::Status interrupted() { return absl::CancelledError("stopped before it was ready"); }

/// Waits for the ready-file of a server that was just started.
absl::StatusOr<api::admin::ReadyFile> wait_for_ready_file(Server& server,
                                                          const ShutdownSignal& signal) {
  while (true) {
    const absl::StatusOr<std::string> text = read_file(server.ready_file);
    if (text.ok()) return api::admin::parse_ready_file(*text);
    if (const auto status = server.child->wait_for(std::chrono::milliseconds(50))) {
      return died(server, *status);
    }
    if (signal.count() > 0) return interrupted();
    if (Clock::now() > server.started + kServerStart) {
      return absl::DeadlineExceededError(str_cat("the ", server.name, " is not ready after ",
                                                 kServerStart.count(), " s; its log is ",
                                                 server.spec.output_path));
    }
  }
}

struct Progress {
  int ready = 0;
  int wanted = 0;
  std::string entrypoint;  ///< empty until it is ready
  absl::Status failure = absl::OkStatus();
};

/// What the instances say about the start. A process that failed its first start is reported at
/// once: waiting for the agent's next try would only hide the reason.
Progress assess(const std::vector<InstanceInfo>& instances, const DesiredState& desired) {
  Progress progress;
  const int fetchers = desired.storage.nodes > 0 ? 1 : 0;  // one on this machine
  progress.wanted =
      desired.prefill + desired.decode + desired.entrypoint + desired.storage.nodes + fetchers;
  for (const InstanceInfo& instance : instances) {
    if (!instance.is_wanted) continue;
    for (const InstanceWorker& worker : instance.workers) {
      if (worker.state == "ready") {
        ++progress.ready;
        if (instance.role == ProcessRole::kEntrypoint) progress.entrypoint = worker.address;
      }
      const bool has_died = worker.state == "backoff" || worker.state == "failing";
      if (has_died && progress.failure.ok()) {
        progress.failure = absl::UnavailableError(
            str_cat(worker.worker_id, " does not start: ",
                    worker.last_error.empty() ? "it says no reason" : worker.last_error));
      }
    }
  }
  return progress;
}

absl::Status check_model_folder(const UpOptions& options) {
  if (options.model_dir.empty()) {
    return absl::NotFoundError(
        "the nano model is not where it is usually found; name a model's folder with --model");
  }
  std::error_code ignored;
  if (!std::filesystem::is_directory(options.model_dir, ignored)) {
    return absl::NotFoundError(
        str_cat("there is no folder ", options.model_dir, "; name a model's folder with --model"));
  }
  if (!std::filesystem::exists(options.model_dir + "/config.json", ignored)) {
    return absl::NotFoundError(str_cat(options.model_dir,
                                       " holds no config.json, so it is no model; name a model's "
                                       "folder with --model"));
  }
  return absl::OkStatus();
}

/// A name of this machine that two clusters on it do not share: "local-" and the FNV-1a hash of the
/// data folder.
std::string node_id_of(const std::string& data_dir) {
  std::uint32_t hash = 2166136261u;
  for (char c : data_dir) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  const std::array<std::uint8_t, 4> bytes = {
      static_cast<std::uint8_t>(hash >> 24), static_cast<std::uint8_t>(hash >> 16),
      static_cast<std::uint8_t>(hash >> 8), static_cast<std::uint8_t>(hash)};
  return str_cat("local-", to_hex(bytes));
}

/// One storage node with as many targets as a group has members: what the disk of one machine can
/// do, in the same form as on many.
absl::StatusOr<api::admin::DesiredStorage> storage_of(const UpOptions& options) {
  api::admin::DesiredStorage storage;
  if (options.kv_bytes == 0) return storage;
  ASSIGN_OR_RETURN(const KvSizes sizes, kv_sizes(options.model_dir, options.engine));
  const std::int64_t fetched = static_cast<std::int64_t>(options.kv_bytes) / kStoredPerFetched;
  storage.nodes = 1;
  storage.targets_per_node = storage.data_shards + storage.parity_shards;
  storage.target_bytes = static_cast<std::int64_t>(options.kv_bytes) / storage.targets_per_node;
  storage.block_bytes = static_cast<std::int64_t>(sizes.block);
  storage.fetch_bytes = std::clamp(fetched, kLeastFetchBytes, kMostFetchBytes);
  storage.window_bytes = static_cast<std::int64_t>(sizes.window);
  storage.window_pool_bytes = storage.window_bytes * kKeptWindows;
  return storage;
}

absl::StatusOr<std::string> find_address(std::string_view flag, const std::string& wanted) {
  absl::StatusOr<std::string> address = find_listen_address(wanted);
  if (absl::IsAlreadyExists(address.status())) {
    return absl::AlreadyExistsError(str_cat(message_of(address.status()),
                                            "; stop that one or choose another with ", flag,
                                            " HOST:PORT"));
  }
  if (!address.ok()) return annotate(address.status(), flag);
  return address;
}

}  // namespace

struct LocalCluster::Impl {
  DataDirLock lock;
  ClusterRecord record;
  DesiredState desired;
  Server controller;
  Server agent;
  AdminClient admin;

  /// Where a server's log and ready-file lie, and its program.
  static Server make_server(const UpOptions& options, std::string name,
                            std::vector<std::string> arguments) {
    Server server;
    server.ready_file = str_cat(options.data_dir, "/", name, ".ready");
    arguments.insert(arguments.end(), {"--ready-file", server.ready_file});
    server.spec = {.program = str_cat(options.program_dir, "/millrace-", name),
                   .arguments = std::move(arguments),
                   .output_path = str_cat(options.data_dir, "/logs/", name, ".log")};
    server.name = std::move(name);
    return server;
  }

  absl::Status start_servers(const ShutdownSignal& signal, UpReporter& reporter);
  absl::Status wait_until_ready(int wait_s, const ShutdownSignal& signal, UpReporter& reporter);
  absl::Status collect_pids();
  absl::Status restart(Server& server);
};

absl::Status LocalCluster::Impl::start_servers(const ShutdownSignal& signal, UpReporter& reporter) {
  for (Server* server : {&controller, &agent}) {
    reporter.step(str_cat("starting the ", server->name));
    RETURN_IF_ERROR(server->start());
    RETURN_IF_ERROR(wait_for_ready_file(*server, signal).status());
  }
  return admin.put_desired(desired);
}

absl::Status LocalCluster::Impl::wait_until_ready(int wait_s, const ShutdownSignal& signal,
                                                  UpReporter& reporter) {
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(wait_s);
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<InstanceInfo> instances, admin.instances());
    const Progress progress = assess(instances, desired);
    RETURN_IF_ERROR(progress.failure);
    reporter.step(str_cat("starting the workers: ", progress.ready, " of ", progress.wanted));
    if (progress.ready >= progress.wanted && admin.is_ready(progress.entrypoint)) {
      record.entrypoint = progress.entrypoint;
      return absl::OkStatus();
    }
    for (Server* server : {&controller, &agent}) {
      if (const auto status = server->child->poll()) return died(*server, *status);
    }
    if (signal.wait_beyond_for(0, kPollPause) > 0) return interrupted();
    if (Clock::now() > deadline) {
      return absl::DeadlineExceededError(str_cat(
          "not ready after ", wait_s, " s (", progress.ready, " of ", progress.wanted,
          " processes are); the logs are in ", record.data_dir, "; --wait-s allows more time"));
    }
  }
}

absl::Status LocalCluster::Impl::collect_pids() {
  record.pids = {{"up", {getpid()}},
                 {"controller", {controller.child->pid()}},
                 {"agent", {agent.child->pid()}}};
  ASSIGN_OR_RETURN(const std::vector<InstanceInfo> instances, admin.instances());
  for (const InstanceInfo& instance : instances) {
    for (const InstanceWorker& worker : instance.workers) {
      record.pids[std::string(process_role_name(instance.role))].push_back(worker.pid);
    }
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::Impl::restart(Server& server) {
  const ExitStatus status = *server.child->poll();
  const bool was_quick = Clock::now() < server.started + kLongEnough;
  server.quick_deaths = was_quick ? server.quick_deaths + 1 : 0;
  if (server.quick_deaths >= kMostQuickDeaths) return died(server, status);
  return server.start();
}

LocalCluster::LocalCluster(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LocalCluster::~LocalCluster() = default;
const ClusterRecord& LocalCluster::record() const { return impl_->record; }

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::start(const UpOptions& options,
                                                                  const ShutdownSignal& signal,
                                                                  UpReporter& reporter) {
  RETURN_IF_ERROR(check_model_folder(options));
  absl::StatusOr<DataDirLock> lock = DataDirLock::acquire(options.data_dir);
  if (!lock.ok()) {
    return absl::Status(lock.status().code(),
                        str_cat(message_of(lock.status()),
                                "; use it, stop it with \"millrace down\", or start another one "
                                "with --data-dir, --entrypoint and --controller"));
  }
  ASSIGN_OR_RETURN(const std::string entrypoint, find_address("--entrypoint", options.entrypoint));
  ASSIGN_OR_RETURN(const std::string controller, find_address("--controller", options.controller));
  std::error_code error;
  std::filesystem::create_directories(options.data_dir + "/logs", error);
  if (error) return absl::PermissionDeniedError(str_cat(options.data_dir, ": ", error.message()));

  std::string model_id = options.model_id;
  if (model_id.empty()) model_id = std::filesystem::path(options.model_dir).filename().string();
  ASSIGN_OR_RETURN(const api::admin::DesiredStorage storage, storage_of(options));
  RETURN_IF_ERROR(load_or_create_secret(options.data_dir).status());
  const std::string threads = str_cat(threads_per_worker(options.prefill + options.decode));
  auto impl = std::unique_ptr<Impl>(new Impl{
      .lock = *std::move(lock),
      .record = {.entrypoint = entrypoint,
                 .controller = controller,
                 .data_dir = options.data_dir,
                 .model_dir = options.model_dir,
                 .pids = {}},
      .desired = {.prefill = options.prefill,
                  .decode = options.decode,
                  .entrypoint = 1,
                  .model_dir = options.model_dir,
                  .model_id = model_id,
                  .engine = options.engine,
                  .entrypoint_listen = entrypoint,
                  .kv_blocks = options.kv_blocks,
                  .max_sequences = options.max_sequences,
                  .step_rows = 0,
                  .storage = storage},
      .controller = Impl::make_server(
          options, "controller",
          {"--listen", controller, "--data-dir", options.data_dir + "/controller"}),
      .agent = Impl::make_server(
          options, "agent",
          {"--controller", str_cat("http://", controller), "--node-id",
           node_id_of(options.data_dir), "--listen", "127.0.0.1:0", "--data-dir",
           options.data_dir + "/agent", "--bin-dir", options.program_dir, "--worker-threads",
           threads, "--cluster-secret", cluster_secret_path(options.data_dir)}),
      .admin = AdminClient(controller)});
  auto cluster = std::unique_ptr<LocalCluster>(new LocalCluster(std::move(impl)));
  absl::Status status = cluster->impl_->start_servers(signal, reporter);
  if (status.ok()) status = cluster->impl_->wait_until_ready(options.wait_s, signal, reporter);
  if (status.ok()) status = cluster->impl_->collect_pids();
  if (status.ok()) status = write_record(cluster->record());
  if (!status.ok()) {
    reporter.step("stopping");
    cluster->stop(signal);
    return status;
  }
  return cluster;
}

absl::Status LocalCluster::run(const ShutdownSignal& signal) {
  bool is_record_current = true;
  while (signal.count() == 0) {
    std::array<pollfd, 3> fds = {pollfd{signal.fd(), POLLIN, 0},
                                 pollfd{impl_->controller.child->exit_fd(), POLLIN, 0},
                                 pollfd{impl_->agent.child->exit_fd(), POLLIN, 0}};
    poll(fds.data(), fds.size(), is_record_current ? -1 : kRecordPauseMs);
    for (Server* server : {&impl_->controller, &impl_->agent}) {
      if (!server->child->poll()) continue;
      if (signal.wait_beyond_for(0, kRestartPause) > 0) return absl::OkStatus();
      RETURN_IF_ERROR(impl_->restart(*server));
      is_record_current = false;
    }
    // The pids are written down again once the controller can be asked for them.
    if (!is_record_current && impl_->collect_pids().ok()) {
      RETURN_IF_ERROR(write_record(record()));
      is_record_current = true;
    }
  }
  return absl::OkStatus();
}

void LocalCluster::stop(const ShutdownSignal& signal) {
  const int seen = signal.count();
  remove_record(impl_->record.data_dir);
  const std::array<std::pair<Server*, std::chrono::seconds>, 2> order = {
      {{&impl_->agent, kAgentGrace}, {&impl_->controller, kControllerGrace}}};
  for (const auto& [server, grace] : order) {
    if (!server->child) continue;
    server->child->send(SIGTERM);
    const Clock::time_point deadline = Clock::now() + grace;
    while (!server->child->wait_for(kPollPause)) {
      const bool hurries = signal.count() > std::max(seen, 1);
      if (hurries || Clock::now() > deadline) {
        server->child->stop(std::chrono::milliseconds(0));
        break;
      }
    }
  }
}

}  // namespace millrace::deploy::cli
