#include "api/admin/entrypoint_report.h"

#include <utility>

#include "api/admin/id.h"
#include "api/admin/object_reader.h"
#include "api/admin/view_json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::admin {
namespace {

constexpr std::size_t kMaxCosts = std::size_t{1} << 16;

Json worker_cost_json(const WorkerCost& worker) {
  Json json;
  json["worker_id"] = worker.worker_id;
  json["incarnation"] = worker.incarnation;
  json["cost"] = prefill_cost_json(worker.cost);
  return json;
}

absl::StatusOr<WorkerCost> read_worker_cost(const Json& value, std::string path) {
  WorkerCost worker;
  ObjectReader reader(value, std::move(path));
  reader.required("worker_id", worker.worker_id);
  reader.required("incarnation", worker.incarnation);
  reader.required_object("cost", &read_prefill_cost, worker.cost);
  if (!is_plain_id(worker.worker_id)) reader.fail("worker_id", plain_id_error(worker.worker_id));
  RETURN_IF_ERROR(reader.finish());
  return worker;
}

}  // namespace

std::string to_json(const EntrypointReport& report) {
  Json demand = Json::array();
  for (const std::uint64_t ns : report.demand_ns) demand.push_back(ns % kDemandModulusNs);
  Json costs = Json::array();
  for (const WorkerCost& worker : report.costs) costs.push_back(worker_cost_json(worker));
  Json json;
  json["incarnation"] = report.incarnation;
  json["sequence"] = report.sequence;
  json["demand_ns"] = std::move(demand);
  json["costs"] = std::move(costs);
  return dump_json(json);
}

absl::StatusOr<EntrypointReport> parse_entrypoint_report(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  EntrypointReport report;
  ObjectReader reader(json, "");
  reader.required("incarnation", report.incarnation);
  reader.required("sequence", report.sequence);
  if (report.sequence == 0) reader.fail("sequence", absl::InvalidArgumentError("begins at 1"));
  reader.required_list("demand_ns", kMaxBuckets, report.demand_ns);
  reader.required_list("costs", kMaxCosts, &read_worker_cost, report.costs);
  RETURN_IF_ERROR(reader.finish());
  return report;
}

}  // namespace millrace::api::admin
