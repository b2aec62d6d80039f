#include "api/admin/process.h"

#include <array>
#include <utility>

#include "api/admin/id.h"
#include "api/admin/object_reader.h"
#include "api/admin/process_json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::admin {
namespace {

constexpr std::array<std::string_view, 5> kRoleNames = {"prefill", "decode", "entrypoint",
                                                        "storage", "kvfetch"};
constexpr std::array<std::string_view, 5> kStateNames = {"starting", "ready", "draining", "backoff",
                                                         "failing"};

template <typename Enum, std::size_t count>
absl::StatusOr<Enum> parse_name(const std::array<std::string_view, count>& names,
                                std::string_view name, std::string_view what) {
  std::string known;
  for (std::size_t index = 0; index < count; ++index) {
    if (names[index] == name) return static_cast<Enum>(index);
    known += str_cat(index == 0 ? "" : ", ", names[index]);
  }
  return absl::InvalidArgumentError(str_cat("unknown ", what, " \"", name, "\"; one of: ", known));
}

}  // namespace

std::string_view process_role_name(ProcessRole role) {
  return kRoleNames[static_cast<std::size_t>(role)];
}

std::vector<std::string> process_role_names() { return {kRoleNames.begin(), kRoleNames.end()}; }

bool is_engine(ProcessRole role) {
  return role == ProcessRole::kPrefill || role == ProcessRole::kDecode;
}

absl::StatusOr<ProcessRole> parse_process_role(std::string_view name) {
  return parse_name<ProcessRole>(kRoleNames, name, "role");
}

std::string_view process_state_name(ProcessState state) {
  return kStateNames[static_cast<std::size_t>(state)];
}

absl::StatusOr<ProcessState> parse_process_state(std::string_view name) {
  return parse_name<ProcessState>(kStateNames, name, "process state");
}

Json report_json(const ProcessReport& report) {
  Json json;
  json["worker_id"] = report.worker_id;
  json["role"] = std::string(process_role_name(report.role));
  json["state"] = std::string(process_state_name(report.state));
  json["incarnation"] = report.incarnation;
  json["pid"] = report.pid;
  json["address"] = report.address;
  json["metrics_address"] = report.metrics_address;
  json["model_id"] = report.model_id;
  json["artifact_digest"] = report.artifact_digest_hex;
  json["directory_address"] = report.directory_address;
  json["restarts"] = report.restarts;
  json["last_error"] = report.last_error;
  return json;
}

absl::StatusOr<ProcessReport> read_report(const Json& value, std::string path) {
  ProcessReport report;
  ObjectReader reader(value, std::move(path));
  reader.required("worker_id", report.worker_id);
  reader.required_name("role", &parse_process_role, report.role);
  reader.required_name("state", &parse_process_state, report.state);
  reader.required("incarnation", report.incarnation);
  reader.optional("pid", report.pid);
  reader.optional("address", report.address);
  reader.optional("metrics_address", report.metrics_address);
  reader.optional("model_id", report.model_id);
  reader.optional("artifact_digest", report.artifact_digest_hex);
  reader.optional("directory_address", report.directory_address);
  reader.optional("restarts", report.restarts);
  reader.optional("last_error", report.last_error);
  if (report.worker_id.empty()) {
    reader.fail("worker_id", absl::InvalidArgumentError("must not be empty"));
  }
  RETURN_IF_ERROR(reader.finish());
  return report;
}

Json assigned_json(const AssignedProcess& assigned) {
  const ProcessSpec& spec = assigned.spec;
  Json json;
  json["worker_id"] = spec.worker_id;
  json["instance_id"] = spec.instance_id;
  json["role"] = std::string(process_role_name(spec.role));
  json["model_dir"] = spec.model_dir;
  json["model_id"] = spec.model_id;
  json["engine"] = spec.engine;
  json["listen"] = spec.listen;
  json["kv_blocks"] = spec.kv_blocks;
  json["max_sequences"] = spec.max_sequences;
  json["step_rows"] = spec.step_rows;
  json["targets"] = spec.targets;
  json["target_bytes"] = spec.target_bytes;
  json["uses_kv_store"] = spec.uses_kv_store;
  json["fetch_bytes"] = spec.fetch_bytes;
  json["window_bytes"] = spec.window_bytes;
  json["window_pool_bytes"] = spec.window_pool_bytes;
  json["incarnation_floor"] = assigned.incarnation_floor;
  return json;
}

absl::StatusOr<AssignedProcess> read_assigned(const Json& value, std::string path) {
  AssignedProcess assigned;
  ProcessSpec& spec = assigned.spec;
  ObjectReader reader(value, std::move(path));
  reader.required("worker_id", spec.worker_id);
  reader.required("instance_id", spec.instance_id);
  reader.required_name("role", &parse_process_role, spec.role);
  reader.required("model_dir", spec.model_dir);
  reader.required("model_id", spec.model_id);
  reader.optional("engine", spec.engine);
  reader.optional("listen", spec.listen);
  reader.optional_between("kv_blocks", 0, kMaxEngineSize, spec.kv_blocks);
  reader.optional_between("max_sequences", 0, kMaxEngineSize, spec.max_sequences);
  reader.optional_between("step_rows", 0, kMaxEngineSize, spec.step_rows);
  reader.optional_between("targets", 0, kMaxEngineSize, spec.targets);
  reader.optional_between("target_bytes", 0, kMaxStorageBytes, spec.target_bytes);
  reader.optional("uses_kv_store", spec.uses_kv_store);
  reader.optional_between("fetch_bytes", 0, kMaxStorageBytes, spec.fetch_bytes);
  reader.optional_between("window_bytes", 0, kMaxStorageBytes, spec.window_bytes);
  reader.optional_between("window_pool_bytes", 0, kMaxStorageBytes, spec.window_pool_bytes);
  reader.optional("incarnation_floor", assigned.incarnation_floor);
  if (!is_plain_id(spec.worker_id)) {
    reader.fail("worker_id", plain_id_error(spec.worker_id));
  }
  RETURN_IF_ERROR(reader.finish());
  return assigned;
}

std::string to_json(const ReadyFile& ready) {
  Json json;
  json["pid"] = ready.pid;
  json["address"] = ready.address;
  if (!ready.metrics_address.empty()) json["metrics_address"] = ready.metrics_address;
  if (!ready.model_id.empty()) json["model_id"] = ready.model_id;
  if (!ready.artifact_digest_hex.empty()) json["artifact_digest"] = ready.artifact_digest_hex;
  if (!ready.directory_address.empty()) json["directory_address"] = ready.directory_address;
  return dump_json(json);
}

absl::StatusOr<ReadyFile> parse_ready_file(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  ReadyFile ready;
  ObjectReader reader(json, "");
  reader.required("pid", ready.pid);
  reader.required("address", ready.address);
  reader.optional("metrics_address", ready.metrics_address);
  reader.optional("model_id", ready.model_id);
  reader.optional("artifact_digest", ready.artifact_digest_hex);
  reader.optional("directory_address", ready.directory_address);
  RETURN_IF_ERROR(reader.finish());
  return ready;
}

}  // namespace millrace::api::admin
