// millrace-storaged: a storage node. Its targets keep shards of KV blocks; the controller's map
// says whose.

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "api/admin/process.h"
#include "common/log/log.h"
#include "common/mapped_file.h"
#include "common/metrics/metrics.h"
#include "common/process/shutdown_signal.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/types.h"
#include "storage/link/node_link.h"
#include "storage/map/map_cell.h"
#include "storage/node/storage_node.h"
#include "storage/store/grpc_service.h"
#include "storage/store/grpc_transport.h"

namespace millrace::storage::node {
namespace {

/// How long streams may go on when the node is told to stop. Clients ask others meanwhile: what a
/// node does not answer is an erasure to them.
constexpr auto kDrainTime = std::chrono::seconds(1);
constexpr auto kMapPoll = std::chrono::milliseconds(100);
constexpr auto kMapFilePoll = std::chrono::milliseconds(1000);

struct Options {
  std::string node_id;
  std::string cluster_id;
  std::string controller;
  std::string map;
  std::string data_dir;
  std::string lane_dir;
  int targets = 1;
  std::uint64_t target_bytes = std::uint64_t{1} << 30;
  std::string io = "auto";
  std::string listen = "127.0.0.1:0";
  std::string advertise;
  std::string metrics = "127.0.0.1:0";
  std::string ready_file;
  std::string log_level = "info";
  std::uint64_t index_cache_mib = 16;
  double ttl_agent_hours = 72;
  double ttl_chatbot_hours = 168;
  std::int64_t slot_grace_ms = 10'000;
  std::int64_t pending_timeout_ms = 60'000;
  std::uint64_t rebuild_mib_per_second = 100;
  std::uint64_t scrub_mib_per_second = 8;
  double scrub_days = 14;
  TargetSettings settings;
};

void declare_policy(CLI::App& app, Options& options) {
  app.add_option("--gc-start", options.settings.watermarks.start,
                 "Fraction of used slots above which the oldest blocks go")
      ->capture_default_str();
  app.add_option("--gc-stop", options.settings.watermarks.stop, "Down to which they go")
      ->capture_default_str();
  app.add_option("--gc-emergency", options.settings.watermarks.emergency,
                 "Above which a target drops its own shards without asking the group's owner")
      ->capture_default_str();
  app.add_option("--ttl-agent-hours", options.ttl_agent_hours,
                 "Life of a block of agents from its last use")
      ->check(CLI::Range(0.1, 100'000.0))
      ->capture_default_str();
  app.add_option("--ttl-chatbot-hours", options.ttl_chatbot_hours, "The same, of chats")
      ->check(CLI::Range(0.1, 100'000.0))
      ->capture_default_str();
  app.add_option("--slot-grace-ms", options.slot_grace_ms,
                 "A freed slot is not written for so long: longer than any read takes")
      ->check(CLI::Range(0, 3'600'000))
      ->capture_default_str();
  app.add_option("--pending-timeout-ms", options.pending_timeout_ms,
                 "After it a shard that nobody published is looked up at the other members")
      ->check(CLI::Range(100, 3'600'000))
      ->capture_default_str();
  app.add_option("--rebuild-mib-per-second", options.rebuild_mib_per_second,
                 "Read from others to rebuild, per target")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--scrub-mib-per-second", options.scrub_mib_per_second, "Scrubbed, per target")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--scrub-days", options.scrub_days, "Between two scrubs of a target")
      ->check(CLI::Range(0.1, 10'000.0))
      ->capture_default_str();
  app.add_option("--index-cache-mib", options.index_cache_mib, "Cache of metadata, per target")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
}

void declare(CLI::App& app, Options& options) {
  app.add_option("--node-id", options.node_id, "Name of this node, stable over restarts")
      ->required();
  app.add_option("--controller", options.controller,
                 "http://host:port of the controller, which owns the storage map");
  app.add_option("--map", options.map,
                 "File of the storage map. With --controller the copy of it that is kept (default: "
                 "map.json in --data-dir); without, the map itself, read again when it changes");
  app.add_option("--cluster-id", options.cluster_id,
                 "Refuse a map of any other cluster (default: take what the controller says)");
  app.add_option("--data-dir", options.data_dir, "Folder of the targets: target-00, target-01, ...")
      ->required();
  app.add_option("--lane-dir", options.lane_dir,
                 "Folder for the slot files, on a 3FS mount for example (default: with the index)");
  app.add_option("--targets", options.targets, "How many targets there are")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--target-bytes", options.target_bytes,
                 "Bytes of slots of each, preallocated when it is new; fixed from then on")
      ->capture_default_str();
  app.add_option("--io", options.io, "How slots are read and written")
      ->check(CLI::IsMember({"auto", "uring", "plain", "usrbio"}))
      ->capture_default_str();
  app.add_option("--listen", options.listen, "host:port to listen on; port 0: any free one")
      ->capture_default_str();
  app.add_option("--advertise", options.advertise,
                 "host:port under which others reach this node (default: where it listens)");
  app.add_option("--metrics,--metrics-listen", options.metrics,
                 "host:port of /metrics; port 0: any free one")
      ->capture_default_str();
  app.add_option("--ready-file", options.ready_file,
                 "Written once the node serves: pid and addresses as JSON");
  app.add_option("--log-level", options.log_level, "debug, info, warn, error or off")
      ->capture_default_str();
  declare_policy(app, options);
}

disk::IoBackend backend_of(const std::string& name) {
  if (name == "uring") return disk::IoBackend::kUring;
  if (name == "plain") return disk::IoBackend::kPlain;
  if (name == "usrbio") return disk::IoBackend::kUsrbio;
  return disk::IoBackend::kAuto;
}

absl::Status check(const Options& options) {
  if (options.controller.empty() && options.map.empty())
    return absl::InvalidArgumentError(
        "--controller or --map is needed: without a storage map a node does not know its cluster");
  if (!options.settings.watermarks.is_valid())
    return absl::InvalidArgumentError(
        "--gc-stop, --gc-start and --gc-emergency must rise, above 0 and up to 1");
  const std::string host = options.listen.substr(0, options.listen.rfind(':'));
  if ((host == "0.0.0.0" || host == "[::]") && options.advertise.empty())
    return absl::InvalidArgumentError(
        str_cat("--listen ", options.listen, " needs --advertise host:port, which others call"));
  return absl::OkStatus();
}

TargetSettings settings_of(const Options& options) {
  TargetSettings settings = options.settings;
  settings.ttl.agent_minutes = static_cast<std::uint32_t>(options.ttl_agent_hours * 60);
  settings.ttl.chatbot_minutes = static_cast<std::uint32_t>(options.ttl_chatbot_hours * 60);
  settings.slot_grace = std::chrono::milliseconds(options.slot_grace_ms);
  settings.pending_timeout = std::chrono::milliseconds(options.pending_timeout_ms);
  settings.rebuild_bytes_per_second = options.rebuild_mib_per_second << 20;
  settings.scrub_bytes_per_second = options.scrub_mib_per_second << 20;
  settings.scrub_interval = std::chrono::hours(static_cast<int>(options.scrub_days * 24));
  return settings;
}

absl::Status make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return absl::PermissionDeniedError(str_cat(path, ": ", error.message()));
  return absl::OkStatus();
}

absl::StatusOr<StorageNodeConfig> make_config(const Options& options) {
  StorageNodeConfig config;
  config.node_id = options.node_id;
  config.target_bytes = options.target_bytes;
  config.settings = settings_of(options);
  config.index_cache_bytes = options.index_cache_mib << 20;
  if (!options.lane_dir.empty()) RETURN_IF_ERROR(make_folder(options.lane_dir));
  for (int i = 0; i < options.targets; ++i) {
    const std::string name = str_cat("target-", i < 10 ? "0" : "", i);
    const std::string folder = str_cat(options.data_dir, "/", name);
    RETURN_IF_ERROR(make_folder(folder));
    TargetFolder target;
    target.target_id = str_cat(options.node_id, "-", name);
    target.slot_path = options.lane_dir.empty()
                           ? str_cat(folder, "/slots")
                           : str_cat(options.lane_dir, "/", target.target_id, ".lane");
    target.index_path = str_cat(folder, "/index");
    target.backend = backend_of(options.io);
    config.targets.push_back(std::move(target));
  }
  return config;
}

/// What of a status the controller wants to know.
api::admin::StorageTargetReport report_of(const TargetStatus& status) {
  api::admin::StorageTargetReport report;
  report.target_id = status.target_id;
  if (status.state != TargetState::kServing)
    report.failure = str_cat(target_state_name(status.state), ": ", status.reason);
  report.slots = status.slot_count;
  report.used_slots = status.slot_count - status.free_slots;
  report.published = status.published_shards;
  report.leased = status.leases;
  report.rebuild_left = status.rebuild.backlog;
  report.rebuilt_epoch = status.rebuild.complete_at_epoch;
  report.scrub_request = status.scrub.request;
  report.scrub_checked = status.scrub.checked;
  report.scrub_total = status.scrub.total;
  report.scrub_bad = status.scrub.bad;
  return report;
}

api::admin::StorageReport report_of(const StorageNode& node, const MapCell& maps,
                                    const std::string& address, std::uint64_t evicted_before) {
  api::admin::StorageReport report;
  report.protocol_version = kProtocolVersion;
  report.address = address;
  if (const auto map = maps.current()) {
    report.cluster_id = map->cluster_id;
    report.map_epoch = map->epoch;
  }
  std::uint64_t evicted = ~std::uint64_t{0};
  for (const TargetStatus& status : node.status()) {
    report.targets.push_back(report_of(status));
    if (status.state == TargetState::kServing) evicted = std::min(evicted, status.evict_request);
  }
  if (evicted == ~std::uint64_t{0}) evicted = 0;
  report.evict_request = std::max(evicted, evicted_before);
  return report;
}

/// The last eviction that people asked for and this node has heard: over restarts too, since a wish
/// is carried out once, and the controller goes on naming it.
class HeardEviction {
 public:
  static absl::StatusOr<std::unique_ptr<HeardEviction>> open(std::string path) {
    const absl::StatusOr<std::string> text = read_file(path, 64);
    if (!text.ok() && text.status().code() != absl::StatusCode::kNotFound) return text.status();
    std::uint64_t request = 0;
    if (text.ok()) {
      const auto read = std::from_chars(text->data(), text->data() + text->size(), request);
      if (read.ec != std::errc())
        return absl::DataLossError(str_cat(path, ": not the number of a request"));
    }
    return std::unique_ptr<HeardEviction>(new HeardEviction(std::move(path), request));
  }

  std::uint64_t request() const { return request_; }
  /// True: it is new, and will not be when the node starts again.
  bool hear(std::uint64_t request) {
    if (request <= request_) return false;
    if (!write_file_durably(path_, str_cat(request, "\n")).ok()) return false;
    request_ = request;
    return true;
  }

 private:
  HeardEviction(std::string path, std::uint64_t request)
      : path_(std::move(path)), request_(request) {}

  const std::string path_;
  std::uint64_t request_;
};

/// Lets any thread wake the link, which comes after the node and goes before it.
class LinkBell {
 public:
  void hang(link::NodeLink* link) {
    std::lock_guard lock(mutex_);
    link_ = link;
  }
  void ring() {
    std::lock_guard lock(mutex_);
    if (link_ != nullptr) link_->report_soon();
  }

 private:
  std::mutex mutex_;
  link::NodeLink* link_ = nullptr;  // guarded by mutex_
};

/// The line to the controller, for as long as it lives; empty without one.
class ControllerLine {
 public:
  ControllerLine(const Options& options, MapCell& maps, StorageNode& node,
                 const std::string& address, HeardEviction& heard, LinkBell& bell,
                 const Logger& log)
      : bell_(bell) {
    if (options.controller.empty()) return;
    link_ = std::make_unique<link::NodeLink>(
        link::NodeLinkOptions{options.controller, options.node_id}, maps,
        [&node, &maps, address, before = heard.request()] {
          return report_of(node, maps, address, before);
        },
        [&node, &heard](const api::admin::StorageReportReply& reply) {
          if (!node.is_open()) return;  // the controller says it again
          if (reply.scrub_request > 0) node.scrub(reply.scrub_request);
          if (heard.hear(reply.evict_request))
            node.evict_to(reply.evict_request, reply.evict_to_fraction);
        },
        log);
    bell_.hang(link_.get());
  }
  ControllerLine(const ControllerLine&) = delete;
  ControllerLine& operator=(const ControllerLine&) = delete;
  ~ControllerLine() { bell_.hang(nullptr); }

 private:
  LinkBell& bell_;
  std::unique_ptr<link::NodeLink> link_;
};

/// A map that people write: taken over when it is newer.
void read_map_file(const Options& options, MapCell& maps, const Logger& log) {
  const absl::StatusOr<StorageMap> map = load_map(options.map);
  const absl::Status status = map.ok() ? maps.offer(*map) : map.status();
  if (!status.ok()) log.warn("map_not_taken", {{"reason", message_of(status)}});
}

/// Waits for a map, then for the signal to stop, and reads the map's file now and then.
absl::Status wait_for_map(const Options& options, MapCell& maps, const ShutdownSignal& shutdown,
                          const Logger& log) {
  bool is_told = false;
  while (maps.current() == nullptr) {
    if (options.controller.empty()) read_map_file(options, maps, log);
    if (maps.current() != nullptr) break;
    if (!is_told) log.info("waiting_for_map", {{"node_id", options.node_id}});
    is_told = true;
    if (shutdown.wait_beyond_for(0, kMapPoll) > 0)
      return absl::CancelledError("told to stop before there was a storage map");
  }
  const auto map = maps.current();
  if (!options.cluster_id.empty() && options.cluster_id != map->cluster_id)
    return absl::FailedPreconditionError(str_cat("the map is of cluster ", map->cluster_id,
                                                 ", --cluster-id says ", options.cluster_id));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<grpc::Server>> listen(const Options& options, grpc::Service& service,
                                                     std::string& address) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  store::configure_storage_server(builder);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0)
    return absl::UnavailableError(str_cat("cannot listen on ", options.listen));
  address = options.advertise.empty()
                ? str_cat(options.listen.substr(0, options.listen.rfind(':')), ":", port)
                : options.advertise;
  return server;
}

absl::Status write_ready_file(const Options& options, const std::string& address,
                              const MetricsServer& metrics) {
  if (options.ready_file.empty()) return absl::OkStatus();
  api::admin::ReadyFile ready;
  ready.pid = ::getpid();
  ready.address = address;
  ready.metrics_address = metrics.address();
  return write_file_atomically(options.ready_file, api::admin::to_json(ready) + "\n");
}

absl::Status run(const Options& options, const Logger& log) {
  RETURN_IF_ERROR(check(options));
  ASSIGN_OR_RETURN(const ShutdownSignal shutdown, ShutdownSignal::install());
  ASSIGN_OR_RETURN(StorageNodeConfig config, make_config(options));
  const std::string cache = options.map.empty() ? options.data_dir + "/map.json" : options.map;
  ASSIGN_OR_RETURN(const std::unique_ptr<MapCell> maps,
                   MapCell::open(options.controller.empty() ? std::string() : cache));

  ASSIGN_OR_RETURN(const std::unique_ptr<HeardEviction> heard,
                   HeardEviction::open(options.data_dir + "/evict_request"));

  // Each of these uses those above it, and ends before them.
  Registry registry;
  LinkBell bell;
  const std::unique_ptr<ShardTransport> transport = store::make_grpc_transport();
  StorageNode node(std::move(config), *maps, *transport, registry, log, [&bell] { bell.ring(); });
  const std::unique_ptr<grpc::Service> service = store::make_storage_service(node);
  std::string address;
  ASSIGN_OR_RETURN(const std::unique_ptr<grpc::Server> server, listen(options, *service, address));
  ASSIGN_OR_RETURN(const std::unique_ptr<MetricsServer> metrics,
                   MetricsServer::start(options.metrics, registry));
  const ControllerLine line(options, *maps, node, address, *heard, bell, log);

  RETURN_IF_ERROR(wait_for_map(options, *maps, shutdown, log));
  RETURN_IF_ERROR(node.open_targets());
  bell.ring();
  RETURN_IF_ERROR(write_ready_file(options, address, *metrics));
  log.info("storage_ready", {{"node_id", options.node_id},
                             {"address", address},
                             {"metrics_address", metrics->address()},
                             {"cluster_id", maps->current()->cluster_id},
                             {"map_epoch", maps->current()->epoch},
                             {"targets", options.targets}});

  while (shutdown.wait_beyond_for(0, kMapFilePoll) == 0) {
    if (options.controller.empty()) read_map_file(options, *maps, log);
  }
  log.info("storage_draining", {{"node_id", options.node_id}});
  server->Shutdown(std::chrono::system_clock::now() + kDrainTime);
  log.info("storage_stopped", {{"node_id", options.node_id}});
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace::storage::node

int main(int argc, char** argv) {
  using namespace millrace;  // NOLINT(build/namespaces): main is not in our namespace
  CLI::App app("A storage node of a Millrace cluster.", "millrace-storaged");
  storage::node::Options options;
  storage::node::declare(app, options);
  CLI11_PARSE(app, argc, argv);
  const auto level = parse_log_level(options.log_level);
  if (!level.ok()) {
    std::cerr << "millrace-storaged: " << message_of(level.status()) << "\n";
    return 2;
  }
  const Logger log = Logger::to_stderr("storaged", *level);
  const absl::Status status = storage::node::run(options, log);
  if (status.ok()) return 0;
  log.error("storage_failed", {{"reason", message_of(status)}});
  return 1;
}
