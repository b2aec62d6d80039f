#include "agent/server/controller_link.h"

#include <algorithm>
#include <utility>

#include "common/http/status_code.h"
#include "common/str_cat.h"

namespace millrace::agent::server {
namespace {

constexpr std::chrono::milliseconds kFirstRetry{100};
constexpr std::chrono::milliseconds kLongestRetry{1000};

common::http::HttpClientOptions client_options() {
  common::http::HttpClientOptions options;
  options.connect_timeout = std::chrono::milliseconds(1000);
  options.timeout = std::chrono::milliseconds(2000);
  return options;
}

}  // namespace

ControllerLink::ControllerLink(LinkOptions options, ReplyReceiver on_reply, Logger log,
                               const telemetry::AgentMetrics& metrics)
    : options_(std::move(options)),
      on_reply_(std::move(on_reply)),
      log_(std::move(log)),
      metrics_(metrics),
      client_(client_options()) {}

ControllerLink::~ControllerLink() { stop_thread(); }

void ControllerLink::start() {
  thread_ = std::thread([this] { run(); });
}

void ControllerLink::publish(LinkReport report) {
  {
    std::lock_guard lock(mutex_);
    if (report_ == report) return;
    report_ = std::move(report);
    has_news_ = true;
  }
  changed_.notify_all();
}

LinkReport ControllerLink::report() const {
  std::lock_guard lock(mutex_);
  return report_;
}

bool ControllerLink::is_connected() const {
  std::lock_guard lock(mutex_);
  return is_connected_;
}

void ControllerLink::stop_thread() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ControllerLink::leave() {
  stop_thread();
  if (!has_joined_) return;
  api::admin::Heartbeat heartbeat;
  heartbeat.session_id = options_.self.session_id;
  const LinkReport last = report();
  heartbeat.epoch = last.epoch;
  heartbeat.revision = last.revision;
  heartbeat.is_leaving = true;
  const absl::StatusOr<std::string> answer =
      post(str_cat("/api/v1/nodes/", options_.self.node_id, "/heartbeat"), to_json(heartbeat));
  // Without an answer the controller finds out by the silence.
  if (!answer.ok()) log_.warn("leave_not_told", {{"reason", message_of(answer.status())}});
}

void ControllerLink::run() {
  std::chrono::milliseconds retry = kFirstRetry;
  while (true) {
    LinkReport current;
    {
      std::lock_guard lock(mutex_);
      if (is_stopping_) return;
      current = report_;
      has_news_ = false;
    }
    const bool is_answered = (has_joined_ || join(current)) && send_heartbeat(current);
    metrics_.heartbeats.with({is_answered ? "answered" : "failed"}).add();
    if (!is_answered) {
      std::lock_guard lock(mutex_);
      has_news_ = false;  // news must not turn the retries into a busy loop
    }
    if (!wait_for_turn(is_answered ? interval_ : retry)) return;
    retry = is_answered ? kFirstRetry : std::min(retry * 2, kLongestRetry);
  }
}

/// Sleeps until the pause is over or there is news; false = stop.
bool ControllerLink::wait_for_turn(std::chrono::milliseconds pause) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, pause, [this] { return is_stopping_ || has_news_; });
  return !is_stopping_;
}

absl::StatusOr<std::string> ControllerLink::post(const std::string& path, std::string body) {
  absl::StatusOr<common::http::HttpResponse> response =
      client_.post(options_.controller_url + path, std::move(body));
  if (!response.ok()) return response.status();
  const absl::StatusCode code = common::http::code_of_http_status(response->status);
  if (code == absl::StatusCode::kOk) return std::move(response->body);
  return absl::Status(code, str_cat("HTTP ", response->status, ": ", response->body));
}

bool ControllerLink::join(const LinkReport& report) {
  api::admin::NodeJoin self = options_.self;
  self.epoch = report.epoch;
  const absl::StatusOr<std::string> answer = post("/api/v1/nodes", to_json(self));
  if (!answer.ok()) {
    set_connected(false, message_of(answer.status()));
    return false;
  }
  const absl::StatusOr<api::admin::NodeJoinReply> reply =
      api::admin::parse_node_join_reply(*answer);
  if (!reply.ok()) {
    set_connected(false, message_of(reply.status()));
    return false;
  }
  interval_ = std::max(reply->heartbeat_interval, std::chrono::milliseconds(10));
  has_joined_ = true;
  return true;
}

bool ControllerLink::send_heartbeat(const LinkReport& report) {
  api::admin::Heartbeat heartbeat;
  heartbeat.session_id = options_.self.session_id;
  heartbeat.epoch = report.epoch;
  heartbeat.revision = report.revision;
  heartbeat.processes = report.processes;
  const absl::StatusOr<std::string> answer =
      post(str_cat("/api/v1/nodes/", options_.self.node_id, "/heartbeat"), to_json(heartbeat));
  if (!answer.ok()) {
    // A controller that was started anew does not know us: introduce ourselves again.
    if (absl::IsNotFound(answer.status())) has_joined_ = false;
    set_connected(false, message_of(answer.status()));
    return false;
  }
  absl::StatusOr<api::admin::HeartbeatReply> reply = api::admin::parse_heartbeat_reply(*answer);
  if (!reply.ok()) {
    set_connected(false, message_of(reply.status()));
    return false;
  }
  set_connected(true, "");
  on_reply_(std::move(*reply));
  return true;
}

void ControllerLink::set_connected(bool is_connected, std::string_view reason) {
  {
    std::lock_guard lock(mutex_);
    if (is_connected_ == is_connected) return;
    is_connected_ = is_connected;
  }
  metrics_.is_connected.set(is_connected ? 1 : 0);
  if (is_connected) {
    log_.info("controller_answers", {{"url", options_.controller_url}});
  } else {
    log_.warn("controller_lost", {{"url", options_.controller_url}, {"reason", reason}});
  }
}

}  // namespace millrace::agent::server
