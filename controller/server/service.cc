#include "controller/server/service.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "api/admin/view.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "controller/core/listing.h"
#include "storage/map/storage_map.h"

namespace millrace::controller::server {
namespace {

using common::http::RestResponse;

/// Calls that wait for the loop. Each belongs to a REST thread, of which there are few; the bound
/// is for the day when there are more.
constexpr std::size_t kMailboxCapacity = 256;
constexpr std::chrono::milliseconds kLongestWait{1000};

std::int64_t unix_time_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string_view refusal_reason(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return "invalid";
    case absl::StatusCode::kResourceExhausted:
      return "overload";
    case absl::StatusCode::kUnavailable:
      return "storage";
    default:
      return "conflict";
  }
}

absl::Status storage_failed() {
  return absl::UnavailableError("the controller could not write its state and is ending");
}

}  // namespace

Service::Service(const core::ControllerOptions& options, std::unique_ptr<state::Store> store,
                 core::StoredState stored, Logger log, Registry& registry)
    : log_(std::move(log)),
      registry_(registry),
      metrics_(registry),
      store_(std::move(store)),
      controller_(options, std::move(stored)),
      committed_version_(controller_.state().version),
      mailbox_(kMailboxCapacity) {}

absl::StatusOr<std::unique_ptr<Service>> Service::start(const core::ControllerOptions& options,
                                                        std::unique_ptr<state::Store> store,
                                                        Logger log, Registry& registry) {
  ASSIGN_OR_RETURN(core::StoredState stored, store->load());
  std::unique_ptr<Service> service(
      new Service(options, std::move(store), std::move(stored), std::move(log), registry));
  service->publish(service->controller_.state().view);
  core::Decision first = service->controller_.start(std::chrono::steady_clock::now());
  RETURN_IF_ERROR(service->execute(first));
  service->loop_ = std::thread([raw = service.get()] { raw->run_loop(); });
  return service;
}

Service::~Service() {
  mailbox_.close();
  if (loop_.joinable()) loop_.join();
}

absl::StatusOr<core::Reply> Service::apply(core::Event event) {
  EventCall call;
  call.event = std::move(event);
  std::future<absl::StatusOr<core::Reply>> answer = call.answer.get_future();
  if (!mailbox_.try_push(Call(std::move(call)))) {
    metrics_.refusals.with({"overload"}).add();
    return absl::ResourceExhaustedError("the controller has too many requests waiting");
  }
  return answer.get();
}

RestResponse Service::ask(Query query) {
  QueryCall call;
  call.query = query;
  std::future<RestResponse> answer = call.answer.get_future();
  if (!mailbox_.try_push(Call(std::move(call)))) {
    metrics_.refusals.with({"overload"}).add();
    return common::http::rest_error(
        absl::ResourceExhaustedError("the controller has too many requests waiting"));
  }
  return answer.get();
}

std::shared_ptr<const std::string> Service::view_json() const {
  std::lock_guard lock(mutex_);
  return view_json_;
}

absl::Status Service::health() const {
  std::lock_guard lock(mutex_);
  return health_;
}

void Service::run_loop() {
  while (true) {
    const TimePoint now = std::chrono::steady_clock::now();
    const std::optional<TimePoint> timer = controller_.next_timer();
    if (timer && *timer <= now) {
      static_cast<void>(apply_on_loop(core::TimerEvent{}));
      continue;
    }
    std::chrono::nanoseconds wait = kLongestWait;
    if (timer) wait = std::min<std::chrono::nanoseconds>(wait, *timer - now);
    std::optional<Call> call = mailbox_.pop_for(wait);
    if (call) {
      serve(*call);
    } else if (mailbox_.is_closed()) {
      return;
    }
  }
}

void Service::serve(Call& call) {
  if (auto* event_call = std::get_if<EventCall>(&call)) {
    event_call->answer.set_value(apply_on_loop(event_call->event));
    return;
  }
  auto& query_call = std::get<QueryCall>(call);
  query_call.answer.set_value(
      std::visit([this](const auto& query) { return answer(query); }, query_call.query));
}

absl::StatusOr<core::Reply> Service::apply_on_loop(const core::Event& event) {
  if (!health().ok()) return storage_failed();
  core::Decision decision = controller_.on_event(event, std::chrono::steady_clock::now());
  RETURN_IF_ERROR(execute(decision));
  if (decision.round) metrics_.count(*decision.round);
  const auto* status = std::get_if<absl::Status>(&decision.reply);
  if (status != nullptr && !status->ok()) {
    metrics_.refusals.with({refusal_reason(status->code())}).add();
  } else if (std::holds_alternative<core::HeartbeatEvent>(event)) {
    metrics_.heartbeats.add();
  }
  return std::move(decision.reply);
}

/// Commit first, then let others see it.
absl::Status Service::execute(core::Decision& decision) {
  if (!decision.state) return absl::OkStatus();
  const std::int64_t time_ms = unix_time_ms();
  for (api::admin::ClusterEvent& event : decision.events) event.unix_time_ms = time_ms;
  const absl::Status status = store_->commit(committed_version_, *decision.state, decision.events);
  if (!status.ok()) {
    log_.error("state_not_written", {{"reason", message_of(status)}});
    metrics_.refusals.with({"storage"}).add();
    std::lock_guard lock(mutex_);
    health_ = status;
    return storage_failed();
  }
  committed_version_ = decision.state->version;
  metrics_.commits.add();
  for (const api::admin::ClusterEvent& event : decision.events) {
    metrics_.events.add();
    log_.info(event.kind, {{"subject", event.subject}, {"detail", event.detail}});
  }
  if (decision.state->view.version != published_version_) publish(decision.state->view);
  return absl::OkStatus();
}

void Service::publish(const api::admin::RoutingView& view) {
  auto json = std::make_shared<const std::string>(api::admin::to_json(view));
  published_version_ = view.version;
  std::lock_guard lock(mutex_);
  view_json_ = std::move(json);
}

RestResponse Service::answer(const NodesQuery&) {
  RestResponse response;
  response.body =
      api::admin::to_json(core::list_nodes(controller_.nodes(), std::chrono::steady_clock::now()));
  return response;
}

RestResponse Service::answer(const InstancesQuery&) {
  RestResponse response;
  response.body =
      api::admin::to_json(core::list_instances(controller_.state(), controller_.nodes()));
  return response;
}

RestResponse Service::answer(const DesiredQuery&) {
  const core::StoredState& state = controller_.state();
  if (!state.desired) {
    return common::http::rest_error(
        absl::NotFoundError("no desired state was set yet; PUT /api/v1/desired sets it"));
  }
  RestResponse response;
  response.body = api::admin::to_json(*state.desired);
  return response;
}

RestResponse Service::answer(const EventsQuery& query) {
  absl::StatusOr<api::admin::EventList> events = store_->events_after(query.after);
  if (!events.ok()) return common::http::rest_error(events.status());
  RestResponse response;
  response.body = api::admin::to_json(*events);
  return response;
}

RestResponse Service::answer(const StorageStatusQuery&) {
  RestResponse response;
  response.body = api::admin::to_json(controller_.storage_status(std::chrono::steady_clock::now()));
  return response;
}

RestResponse Service::answer(const StorageMapQuery& query) {
  const core::StoredState& state = controller_.state();
  if (!state.storage_map) {
    return common::http::rest_error(
        absl::NotFoundError("this cluster stores no KV: there is no storage map"));
  }
  RestResponse response;
  if (state.storage_map->epoch <= query.after) {
    response.status = 204;
    return response;
  }
  response.body = storage::encode_map(*state.storage_map);
  return response;
}

RestResponse Service::answer(const MetricsQuery&) {
  metrics_.observe(controller_.state(), controller_.nodes(), controller_.last_demand());
  return RestResponse{200, registry_.exposition(), "text/plain; version=0.0.4; charset=utf-8"};
}

}  // namespace millrace::controller::server
