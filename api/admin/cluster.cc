#include "api/admin/cluster.h"

#include <utility>

#include "api/admin/object_reader.h"
#include "api/admin/process_json.h"
#include "api/admin/storage_json.h"
#include "api/admin/view_json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::admin {
namespace {

constexpr std::size_t kMaxListItems = std::size_t{1} << 20;

void read_count(ObjectReader& reader, std::string_view key, int most, int& out) {
  std::int64_t count = 0;
  reader.required_between(key, 0, most, count);
  out = static_cast<int>(count);
}

/// The first rule a desired state breaks that is not about one field's type or range.
/// Each listens at the address of its own node, so that one address for all of them is a mistake.
void check_entrypoints(ObjectReader& reader, const DesiredState& desired) {
  if (desired.entrypoint < 2 || desired.entrypoint_listen.starts_with(':')) return;
  reader.fail("entrypoint_listen",
              absl::InvalidArgumentError("must be \":port\" with more than one entrypoint"));
}

void check_model(ObjectReader& reader, const DesiredState& desired) {
  if (desired.model_dir.empty()) {
    reader.fail("model_dir", absl::InvalidArgumentError("must not be empty"));
  } else if (desired.model_dir.front() != '/') {
    // The processes run in another folder than the caller: a relative path would mean another one.
    reader.fail("model_dir", absl::InvalidArgumentError("must be an absolute path"));
  }
  if (desired.model_id.empty()) {
    reader.fail("model_id", absl::InvalidArgumentError("must not be empty"));
  }
}

absl::StatusOr<InstanceWorker> read_instance_worker(const Json& value, std::string path) {
  InstanceWorker worker;
  ObjectReader reader(value, std::move(path));
  reader.required("worker_id", worker.worker_id);
  reader.required("node_id", worker.node_id);
  reader.required("state", worker.state);
  reader.required("incarnation", worker.incarnation);
  reader.required("pid", worker.pid);
  reader.required("address", worker.address);
  reader.required("metrics_address", worker.metrics_address);
  reader.required("restarts", worker.restarts);
  reader.required("last_error", worker.last_error);
  RETURN_IF_ERROR(reader.finish());
  return worker;
}

Json instance_worker_json(const InstanceWorker& worker) {
  Json json;
  json["worker_id"] = worker.worker_id;
  json["node_id"] = worker.node_id;
  json["state"] = worker.state;
  json["incarnation"] = worker.incarnation;
  json["pid"] = worker.pid;
  json["address"] = worker.address;
  json["metrics_address"] = worker.metrics_address;
  json["restarts"] = worker.restarts;
  json["last_error"] = worker.last_error;
  return json;
}

absl::StatusOr<InstanceInfo> read_instance(const Json& value, std::string path) {
  InstanceInfo instance;
  ObjectReader reader(value, std::move(path));
  reader.required("instance_id", instance.instance_id);
  reader.required_name("role", &parse_process_role, instance.role);
  reader.required("is_wanted", instance.is_wanted);
  read_bucket(reader, instance.role == ProcessRole::kPrefill, instance.bucket);
  reader.required_list("workers", kMaxListItems, &read_instance_worker, instance.workers);
  RETURN_IF_ERROR(reader.finish());
  return instance;
}

absl::StatusOr<ClusterEvent> read_event(const Json& value, std::string path) {
  ClusterEvent event;
  ObjectReader reader(value, std::move(path));
  reader.required("id", event.id);
  reader.required("unix_time_ms", event.unix_time_ms);
  reader.required("kind", event.kind);
  reader.required("subject", event.subject);
  reader.required("detail", event.detail);
  RETURN_IF_ERROR(reader.finish());
  return event;
}

}  // namespace

std::string to_json(const DesiredState& desired) {
  Json json;
  json["prefill"] = desired.prefill;
  json["decode"] = desired.decode;
  json["entrypoint"] = desired.entrypoint;
  json["model_dir"] = desired.model_dir;
  json["model_id"] = desired.model_id;
  json["engine"] = desired.engine;
  json["entrypoint_listen"] = desired.entrypoint_listen;
  json["kv_blocks"] = desired.kv_blocks;
  json["max_sequences"] = desired.max_sequences;
  json["step_rows"] = desired.step_rows;
  if (desired.storage != DesiredStorage{}) json["storage"] = desired_storage_json(desired.storage);
  return dump_json(json);
}

absl::StatusOr<DesiredState> parse_desired_state(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  DesiredState desired;
  ObjectReader reader(json, "");
  read_count(reader, "prefill", kMaxWorkersPerRole, desired.prefill);
  read_count(reader, "decode", kMaxWorkersPerRole, desired.decode);
  read_count(reader, "entrypoint", kMaxWorkersPerRole, desired.entrypoint);
  reader.required("model_dir", desired.model_dir);
  reader.required("model_id", desired.model_id);
  reader.optional("engine", desired.engine);
  reader.optional("entrypoint_listen", desired.entrypoint_listen);
  reader.optional_between("kv_blocks", 0, kMaxEngineSize, desired.kv_blocks);
  reader.optional_between("max_sequences", 0, kMaxEngineSize, desired.max_sequences);
  reader.optional_between("step_rows", 0, kMaxEngineSize, desired.step_rows);
  reader.optional_object("storage", &read_desired_storage, desired.storage);
  check_model(reader, desired);
  check_entrypoints(reader, desired);
  RETURN_IF_ERROR(reader.finish());
  return desired;
}

std::string to_json(const std::vector<InstanceInfo>& instances) {
  Json list = Json::array();
  for (const InstanceInfo& instance : instances) {
    Json workers = Json::array();
    for (const InstanceWorker& worker : instance.workers) {
      workers.push_back(instance_worker_json(worker));
    }
    Json json;
    json["instance_id"] = instance.instance_id;
    json["role"] = std::string(process_role_name(instance.role));
    json["is_wanted"] = instance.is_wanted;
    if (instance.bucket != kNoBucket) json["bucket"] = instance.bucket;
    json["workers"] = std::move(workers);
    list.push_back(std::move(json));
  }
  Json json;
  json["instances"] = std::move(list);
  return dump_json(json);
}

absl::StatusOr<std::vector<InstanceInfo>> parse_instances(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  std::vector<InstanceInfo> instances;
  ObjectReader reader(json, "");
  reader.required_list("instances", kMaxListItems, &read_instance, instances);
  RETURN_IF_ERROR(reader.finish());
  return instances;
}

std::string to_json(const EventList& list) {
  Json events = Json::array();
  for (const ClusterEvent& event : list.events) {
    Json json;
    json["id"] = event.id;
    json["unix_time_ms"] = event.unix_time_ms;
    json["kind"] = event.kind;
    json["subject"] = event.subject;
    json["detail"] = event.detail;
    events.push_back(std::move(json));
  }
  Json json;
  json["oldest_id"] = list.oldest_id;
  json["events"] = std::move(events);
  return dump_json(json);
}

absl::StatusOr<EventList> parse_event_list(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  EventList list;
  ObjectReader reader(json, "");
  reader.required("oldest_id", list.oldest_id);
  reader.required_list("events", kMaxListItems, &read_event, list.events);
  RETURN_IF_ERROR(reader.finish());
  return list;
}

}  // namespace millrace::api::admin
