#include "controller/server/routes.h"

#include <charconv>
#include <utility>

#include "api/admin/cluster.h"
#include "api/admin/entrypoint_report.h"
#include "api/admin/id.h"
#include "api/admin/node.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::controller::server {
namespace {

using common::http::rest_error;
using common::http::RestRequest;
using common::http::RestResponse;

RestResponse json_response(std::string body) {
  RestResponse response;
  response.body = std::move(body);
  return response;
}

/// The answer of an event whose reply is a T, or an error.
template <typename T>
RestResponse answer_with(absl::StatusOr<core::Reply> reply) {
  if (!reply.ok()) return rest_error(reply.status());
  if (const auto* status = std::get_if<absl::Status>(&*reply)) return rest_error(*status);
  return json_response(api::admin::to_json(std::get<T>(*reply)));
}

RestResponse join(Service& service, const RestRequest& request) {
  absl::StatusOr<api::admin::NodeJoin> join = api::admin::parse_node_join(request.body);
  if (!join.ok()) return rest_error(join.status());
  return answer_with<api::admin::NodeJoinReply>(service.apply(core::JoinEvent{std::move(*join)}));
}

RestResponse heartbeat(Service& service, const RestRequest& request) {
  absl::StatusOr<api::admin::Heartbeat> heartbeat = api::admin::parse_heartbeat(request.body);
  if (!heartbeat.ok()) return rest_error(heartbeat.status());
  return answer_with<api::admin::HeartbeatReply>(
      service.apply(core::HeartbeatEvent{request.path_parameters.at("id"), std::move(*heartbeat)}));
}

RestResponse entrypoint_report(Service& service, const RestRequest& request) {
  absl::StatusOr<api::admin::EntrypointReport> report =
      api::admin::parse_entrypoint_report(request.body);
  if (!report.ok()) return rest_error(report.status());
  absl::StatusOr<core::Reply> reply = service.apply(
      core::EntrypointReportEvent{request.path_parameters.at("id"), std::move(*report)});
  if (!reply.ok()) return rest_error(reply.status());
  const absl::Status& status = std::get<absl::Status>(*reply);
  if (!status.ok()) return rest_error(status);
  RestResponse response;
  response.status = 204;
  return response;
}

RestResponse set_desired(Service& service, const RestRequest& request) {
  absl::StatusOr<api::admin::DesiredState> desired = api::admin::parse_desired_state(request.body);
  if (!desired.ok()) return rest_error(desired.status());
  absl::StatusOr<core::Reply> reply = service.apply(core::SetDesiredEvent{*desired});
  if (!reply.ok()) return rest_error(reply.status());
  const absl::Status& status = std::get<absl::Status>(*reply);
  return status.ok() ? json_response(api::admin::to_json(*desired)) : rest_error(status);
}

RestResponse storage_report(Service& service, const RestRequest& request) {
  absl::StatusOr<api::admin::StorageReport> report = api::admin::parse_storage_report(request.body);
  if (!report.ok()) return rest_error(report.status());
  const std::string& node_id = request.path_parameters.at("id");
  if (!api::admin::is_plain_id(node_id)) return rest_error(api::admin::plain_id_error(node_id));
  return answer_with<api::admin::StorageReportReply>(
      service.apply(core::StorageReportEvent{node_id, std::move(*report)}));
}

RestResponse storage_replace(Service& service, const RestRequest& request) {
  absl::StatusOr<api::admin::StorageReplace> replace =
      api::admin::parse_storage_replace(request.body);
  if (!replace.ok()) return rest_error(replace.status());
  absl::StatusOr<core::Reply> reply = service.apply(core::StorageReplaceEvent{*replace});
  if (!reply.ok()) return rest_error(reply.status());
  const absl::Status& status = std::get<absl::Status>(*reply);
  return status.ok() ? service.ask(StorageStatusQuery{}) : rest_error(status);
}

RestResponse storage_scrub(Service& service) {
  return answer_with<api::admin::StorageWish>(service.apply(core::StorageScrubEvent{}));
}

RestResponse storage_evict(Service& service, const RestRequest& request) {
  absl::StatusOr<api::admin::StorageEvict> evict = api::admin::parse_storage_evict(request.body);
  if (!evict.ok()) return rest_error(evict.status());
  return answer_with<api::admin::StorageWish>(service.apply(core::StorageEvictEvent{*evict}));
}

/// The one query parameter of a request, "after": 0 when it is not there. `what` it is, for errors.
absl::StatusOr<std::uint64_t> parse_after(const RestRequest& request, std::string_view what) {
  std::uint64_t after = 0;
  for (const auto& [key, value] : request.query) {
    if (key != "after") {
      return absl::InvalidArgumentError(str_cat("query parameter \"", key, "\" is not known here"));
    }
    const char* end = value.data() + value.size();
    const auto [rest, error] = std::from_chars(value.data(), end, after);
    if (error != std::errc() || rest != end || after > (std::uint64_t{1} << 53)) {
      return absl::InvalidArgumentError(str_cat("query parameter \"after\" must be ", what));
    }
  }
  return after;
}

RestResponse events(Service& service, const RestRequest& request) {
  const absl::StatusOr<std::uint64_t> after = parse_after(request, "an event id");
  return after.ok() ? service.ask(EventsQuery{*after}) : rest_error(after.status());
}

RestResponse storage_map(Service& service, const RestRequest& request) {
  const absl::StatusOr<std::uint64_t> after = parse_after(request, "an epoch");
  return after.ok() ? service.ask(StorageMapQuery{*after}) : rest_error(after.status());
}

RestResponse health(const Service& service) {
  const absl::Status status = service.health();
  return status.ok() ? json_response("{\"status\":\"ok\"}")
                     : rest_error(absl::UnavailableError(status.message()));
}

}  // namespace

std::vector<common::http::RestRoute> routes(Service& service) {
  return {
      {"GET", "/api/v1/nodes", [&](const RestRequest&) { return service.ask(NodesQuery{}); }},
      {"POST", "/api/v1/nodes", [&](const RestRequest& request) { return join(service, request); }},
      {"POST", "/api/v1/nodes/{id}/heartbeat",
       [&](const RestRequest& request) { return heartbeat(service, request); }},
      {"POST", "/api/v1/entrypoints/{id}/report",
       [&](const RestRequest& request) { return entrypoint_report(service, request); }},
      {"GET", "/api/v1/instances",
       [&](const RestRequest&) { return service.ask(InstancesQuery{}); }},
      {"GET", "/api/v1/view",
       [&](const RestRequest&) { return json_response(*service.view_json()); }},
      {"GET", "/api/v1/events",
       [&](const RestRequest& request) { return events(service, request); }},
      {"GET", "/api/v1/desired", [&](const RestRequest&) { return service.ask(DesiredQuery{}); }},
      {"PUT", "/api/v1/desired",
       [&](const RestRequest& request) { return set_desired(service, request); }},
      {"GET", "/api/v1/storage",
       [&](const RestRequest&) { return service.ask(StorageStatusQuery{}); }},
      {"GET", "/api/v1/storage/map",
       [&](const RestRequest& request) { return storage_map(service, request); }},
      {"POST", "/api/v1/storage/nodes/{id}/report",
       [&](const RestRequest& request) { return storage_report(service, request); }},
      {"POST", "/api/v1/storage/replace",
       [&](const RestRequest& request) { return storage_replace(service, request); }},
      {"POST", "/api/v1/storage/scrub", [&](const RestRequest&) { return storage_scrub(service); }},
      {"POST", "/api/v1/storage/evict",
       [&](const RestRequest& request) { return storage_evict(service, request); }},
      {"GET", "/metrics", [&](const RestRequest&) { return service.ask(MetricsQuery{}); }},
      {"GET", "/health", [&](const RestRequest&) { return health(service); }},
  };
}

}  // namespace millrace::controller::server
