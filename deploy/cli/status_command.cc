// `millrace status`.

#include <cstdio>
#include <string>
#include <vector>

#include "api/admin/process.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/routing/buckets.h"
#include "deploy/cli/admin_client.h"
#include "deploy/cli/cluster_record.h"
#include "deploy/cli/commands.h"
#include "deploy/cli/text_table.h"

namespace millrace::deploy::cli {
namespace {

using api::admin::InstanceInfo;
using api::admin::InstanceWorker;
using api::admin::NodeInfo;

struct ClusterStatus {
  std::string controller;
  std::string entrypoint;  ///< empty while none is ready
  std::vector<NodeInfo> nodes;
  std::vector<InstanceInfo> instances;
  dataplane::routing::BucketEdges edges;
};

absl::StatusOr<ClusterStatus> ask(const StatusOptions& options) {
  ClusterStatus status;
  status.controller = options.controller;
  if (status.controller.empty()) {
    ASSIGN_OR_RETURN(const ClusterRecord record, read_record(options.data_dir));
    status.controller = record.controller;
  }
  AdminClient admin(status.controller);
  ASSIGN_OR_RETURN(status.nodes, admin.nodes());
  ASSIGN_OR_RETURN(status.instances, admin.instances());
  ASSIGN_OR_RETURN(const api::admin::RoutingView view, admin.view());
  status.edges = dataplane::routing::bucket_edges(view.bucket_edges);
  for (const InstanceInfo& instance : status.instances) {
    if (instance.role != api::admin::ProcessRole::kEntrypoint) continue;
    for (const InstanceWorker& worker : instance.workers) {
      if (worker.state == "ready") status.entrypoint = worker.address;
    }
  }
  return status;
}

/// The range of input lengths that a prefill instance serves; empty for others.
std::string input_lengths(const InstanceInfo& instance,
                          const dataplane::routing::BucketEdges& edges) {
  const bool is_known = instance.bucket >= 0 && instance.bucket < dataplane::routing::kBucketCount;
  return is_known ? dataplane::routing::bucket_name(instance.bucket, edges) : "";
}

Json status_json(const ClusterStatus& status) {
  Json nodes = Json::array();
  for (const NodeInfo& node : status.nodes) {
    nodes.push_back(Json{{"node_id", node.node_id},
                         {"address", node.address},
                         {"is_alive", node.is_alive},
                         {"heartbeat_age_ms", node.heartbeat_age.count()}});
  }
  Json workers = Json::array();
  for (const InstanceInfo& instance : status.instances) {
    for (const InstanceWorker& worker : instance.workers) {
      workers.push_back(Json{{"worker_id", worker.worker_id},
                             {"role", std::string(process_role_name(instance.role))},
                             {"instance_id", instance.instance_id},
                             {"node_id", worker.node_id},
                             {"state", worker.state},
                             {"input_lengths", input_lengths(instance, status.edges)},
                             {"pid", worker.pid},
                             {"address", worker.address},
                             {"metrics_address", worker.metrics_address},
                             {"restarts", worker.restarts},
                             {"last_error", worker.last_error}});
    }
  }
  return Json{{"controller", status.controller},
              {"entrypoint", status.entrypoint},
              {"nodes", std::move(nodes)},
              {"workers", std::move(workers)}};
}

void print_text(const ClusterStatus& status, const Terminal& terminal) {
  std::printf("controller  http://%s\n", status.controller.c_str());
  std::printf("entrypoint  %s\n\n", status.entrypoint.empty()
                                        ? terminal.red("none is ready").c_str()
                                        : str_cat("http://", status.entrypoint).c_str());
  TextTable nodes({"node", "address", "alive", "last heard of"});
  for (const NodeInfo& node : status.nodes) {
    nodes.add_row({node.node_id, node.address, node.is_alive ? "yes" : "no",
                   str_cat(node.heartbeat_age.count(), " ms ago")});
  }
  std::printf("%s\n", nodes.to_string().c_str());
  TextTable workers({"worker", "node", "state", "serves", "pid", "address", "restarts"});
  for (const InstanceInfo& instance : status.instances) {
    for (const InstanceWorker& worker : instance.workers) {
      workers.add_row({worker.worker_id, worker.node_id.empty() ? "none" : worker.node_id,
                       worker.state, input_lengths(instance, status.edges), str_cat(worker.pid),
                       worker.address, str_cat(worker.restarts)});
    }
  }
  std::printf("%s", workers.to_string().c_str());
  for (const InstanceInfo& instance : status.instances) {
    for (const InstanceWorker& worker : instance.workers) {
      if (worker.last_error.empty()) continue;
      const std::string text = str_cat(worker.worker_id, ": ", worker.last_error);
      std::printf("\n%s\n", terminal.red(text).c_str());
    }
  }
}

}  // namespace

int run_status(const StatusOptions& options, const Terminal& terminal) {
  const absl::StatusOr<ClusterStatus> status = ask(options);
  if (!status.ok()) {
    print_error(message_of(status.status()));
    return 1;
  }
  if (options.is_json) {
    std::printf("%s\n", dump_json(status_json(*status)).c_str());
  } else {
    print_text(*status, terminal);
  }
  return 0;
}

}  // namespace millrace::deploy::cli
