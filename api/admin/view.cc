#include "api/admin/view.h"

#include <array>
#include <cmath>
#include <utility>

#include "api/admin/object_reader.h"
#include "api/admin/view_json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::admin {
namespace {

using dataplane::cost::Coefficient;
using dataplane::cost::CostModel;
using dataplane::cost::kCoefficients;

constexpr std::array<std::string_view, 2> kRoleNames = {"prefill", "decode"};
constexpr std::array<std::string_view, 3> kStateNames = {"starting", "ready", "draining"};
constexpr std::size_t kMaxViewWorkers = std::size_t{1} << 16;
constexpr std::size_t kMaxViewEntrypoints = std::size_t{1} << 12;

Json worker_json(const ViewWorker& worker) {
  Json json;
  json["worker_id"] = worker.worker_id;
  json["instance_id"] = worker.instance_id;
  json["node_id"] = worker.node_id;
  json["host_id"] = worker.host_id;
  json["role"] = std::string(role_name(worker.role));
  json["state"] = std::string(worker_state_name(worker.state));
  json["incarnation"] = worker.incarnation;
  json["address"] = worker.address;
  if (worker.bucket != kNoBucket) json["bucket"] = worker.bucket;
  return json;
}

absl::StatusOr<ViewWorker> read_worker(const Json& value, std::string path) {
  ViewWorker worker;
  ObjectReader reader(value, std::move(path));
  reader.required("worker_id", worker.worker_id);
  reader.required("instance_id", worker.instance_id);
  reader.required("node_id", worker.node_id);
  reader.required("host_id", worker.host_id);
  reader.required_name("role", &parse_role, worker.role);
  reader.required_name("state", &parse_worker_state, worker.state);
  reader.required("incarnation", worker.incarnation);
  reader.required("address", worker.address);
  if (worker.address.empty() && worker.state == WorkerState::kReady) {
    reader.fail("address", absl::InvalidArgumentError("must not be empty when ready"));
  }
  // A view that an earlier controller stored has none.
  read_bucket(reader, worker.role == WorkerRole::kPrefill, worker.bucket);
  RETURN_IF_ERROR(reader.finish());
  return worker;
}

Json entrypoint_json(const ViewEntrypoint& entrypoint) {
  Json json;
  json["entrypoint_id"] = entrypoint.entrypoint_id;
  json["incarnation"] = entrypoint.incarnation;
  json["directory_address"] = entrypoint.directory_address;
  return json;
}

absl::StatusOr<ViewEntrypoint> read_entrypoint(const Json& value, std::string path) {
  ViewEntrypoint entrypoint;
  ObjectReader reader(value, std::move(path));
  reader.required("entrypoint_id", entrypoint.entrypoint_id);
  reader.required("incarnation", entrypoint.incarnation);
  reader.required("directory_address", entrypoint.directory_address);
  if (entrypoint.directory_address.empty()) {
    reader.fail("directory_address", absl::InvalidArgumentError("must not be empty"));
  }
  RETURN_IF_ERROR(reader.finish());
  return entrypoint;
}

void read_coefficient(ObjectReader& reader, std::string_view key, double& out) {
  reader.required(key, out);
  if (out < 0) reader.fail(key, absl::InvalidArgumentError("must not be negative"));
}

Json published_cost_json(const PublishedCost& published) {
  Json json;
  json["version"] = published.version;
  json["cost"] = prefill_cost_json(published.cost);
  return json;
}

absl::StatusOr<PublishedCost> read_published_cost(const Json& value, std::string path) {
  PublishedCost published;
  ObjectReader reader(value, std::move(path));
  reader.required("version", published.version);
  reader.required_object("cost", &read_prefill_cost, published.cost);
  RETURN_IF_ERROR(reader.finish());
  return published;
}

void read_bucket_edges(ObjectReader& reader, std::vector<std::uint64_t>& edges) {
  reader.required_list("bucket_edges", kMaxBuckets - 1, edges);
  std::uint64_t before = 0;
  for (const std::uint64_t edge : edges) {
    if (edge <= before || edge > kMaxBucketEdge) {
      reader.fail("bucket_edges",
                  absl::InvalidArgumentError(str_cat("must ascend from 1 to ", kMaxBucketEdge)));
    }
    before = edge;
  }
}

absl::Status check_order(const RoutingView& view) {
  for (std::size_t index = 1; index < view.workers.size(); ++index) {
    if (view.workers[index - 1].worker_id >= view.workers[index].worker_id) {
      return absl::InvalidArgumentError(
          str_cat("\"workers[", index, "].worker_id\" must come after the one before it"));
    }
  }
  for (std::size_t index = 1; index < view.entrypoints.size(); ++index) {
    if (view.entrypoints[index - 1].entrypoint_id >= view.entrypoints[index].entrypoint_id) {
      return absl::InvalidArgumentError(
          str_cat("\"entrypoints[", index, "].entrypoint_id\" must come after the one before it"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

void read_bucket(ObjectReader& reader, bool is_prefill, int& out) {
  if (!reader.has("bucket")) return;
  std::int64_t bucket = 0;
  reader.required_between("bucket", 0, kMaxBuckets - 1, bucket);
  out = static_cast<int>(bucket);
  if (!is_prefill) {
    reader.fail("bucket", absl::InvalidArgumentError("only prefill workers have one"));
  }
}

Json prefill_cost_json(const CostModel& cost) {
  Json json;
  for (const Coefficient& c : kCoefficients) json[str_cat(c.name, "_ns")] = cost.*c.value;
  return json;
}

absl::StatusOr<CostModel> read_prefill_cost(const Json& value, std::string path) {
  CostModel cost;
  ObjectReader reader(value, std::move(path));
  for (const Coefficient& c : kCoefficients) {
    const std::string key = str_cat(c.name, "_ns");
    // What a controller stored before there were these has none, and means 0.
    const bool is_newer = c.value == &CostModel::tail || c.value == &CostModel::tail_cross;
    if (is_newer && !reader.has(key)) continue;
    read_coefficient(reader, key, cost.*c.value);
  }
  if (cost == CostModel{}) {
    reader.fail("fixed_ns", absl::InvalidArgumentError("must not be 0 when all others are"));
  }
  RETURN_IF_ERROR(reader.finish());
  return cost;
}

std::string_view role_name(WorkerRole role) { return kRoleNames[static_cast<std::size_t>(role)]; }

absl::StatusOr<WorkerRole> parse_role(std::string_view name) {
  if (name == kRoleNames[0]) return WorkerRole::kPrefill;
  if (name == kRoleNames[1]) return WorkerRole::kDecode;
  return absl::InvalidArgumentError(
      str_cat("unknown role \"", name, "\"; one of: prefill, decode"));
}

std::string_view worker_state_name(WorkerState state) {
  return kStateNames[static_cast<std::size_t>(state)];
}

absl::StatusOr<WorkerState> parse_worker_state(std::string_view name) {
  if (name == kStateNames[0]) return WorkerState::kStarting;
  if (name == kStateNames[1]) return WorkerState::kReady;
  if (name == kStateNames[2]) return WorkerState::kDraining;
  return absl::InvalidArgumentError(
      str_cat("unknown worker state \"", name, "\"; one of: starting, ready, draining"));
}

std::string to_json(const RoutingView& view) {
  Json workers = Json::array();
  for (const ViewWorker& worker : view.workers) workers.push_back(worker_json(worker));
  Json json;
  json["version"] = view.version;
  json["epoch"] = view.epoch;
  json["model_id"] = view.model_id;
  json["artifact_digest"] = view.artifact_digest_hex;
  json["workers"] = std::move(workers);
  Json entrypoints = Json::array();
  for (const ViewEntrypoint& one : view.entrypoints) entrypoints.push_back(entrypoint_json(one));
  json["entrypoints"] = std::move(entrypoints);
  if (view.prefill_cost) json["prefill_cost"] = published_cost_json(*view.prefill_cost);
  if (!view.bucket_edges.empty()) json["bucket_edges"] = view.bucket_edges;
  return dump_json(json);
}

absl::StatusOr<RoutingView> parse_routing_view(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  RoutingView view;
  ObjectReader reader(json, "");
  reader.required("version", view.version);
  reader.required("epoch", view.epoch);
  reader.required("model_id", view.model_id);
  reader.required("artifact_digest", view.artifact_digest_hex);
  reader.required_list("workers", kMaxViewWorkers, &read_worker, view.workers);
  // A view that an earlier controller stored has none.
  if (reader.has("entrypoints")) {
    reader.required_list("entrypoints", kMaxViewEntrypoints, &read_entrypoint, view.entrypoints);
  }
  if (reader.has("prefill_cost")) {
    reader.required_object("prefill_cost", &read_published_cost, view.prefill_cost.emplace());
  }
  if (reader.has("bucket_edges")) read_bucket_edges(reader, view.bucket_edges);
  RETURN_IF_ERROR(reader.finish());
  RETURN_IF_ERROR(check_order(view));
  return view;
}

}  // namespace millrace::api::admin
