#include "api/entrypoint/view_poller.h"

#include <utility>

#include "common/http/http_client.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

absl::StatusOr<std::string> fetch(common::http::HttpClient& client, const std::string& url) {
  ASSIGN_OR_RETURN(common::http::HttpResponse response, client.get(url));
  if (response.status != 200) {
    return absl::UnavailableError(str_cat("the controller answered ", response.status));
  }
  return std::move(response.body);
}

}  // namespace

ViewPoller::ViewPoller(common::http::EventLoop& loop, Logger log, std::string controller_url,
                       std::chrono::milliseconds period,
                       std::function<void(admin::RoutingView)> on_view)
    : loop_(loop),
      log_(std::move(log)),
      url_(std::move(controller_url) + "/api/v1/view"),
      period_(period),
      on_view_(std::move(on_view)),
      thread_([this] { run(); }) {}

ViewPoller::~ViewPoller() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void ViewPoller::run() {
  // A hung controller must not hold up the end of the process for long.
  common::http::HttpClient client({.connect_timeout = std::chrono::milliseconds(500),
                                   .timeout = std::chrono::milliseconds(1000)});
  std::string last_body;
  bool was_ok = true;
  while (true) {
    const absl::StatusOr<std::string> body = fetch(client, url_);
    absl::Status status = body.status();
    if (body.ok() && *body != last_body) {
      absl::StatusOr<admin::RoutingView> view = admin::parse_routing_view(*body);
      status = view.status();
      if (view.ok()) {
        last_body = *body;
        loop_.post([on_view = on_view_, value = *std::move(view)] { on_view(value); });
      }
    }
    if (status.ok() != was_ok) {
      was_ok = status.ok();
      if (was_ok) {
        log_.info("controller_back");
      } else {
        log_.warn("no_routing_view", {{"controller", url_}, {"reason", status.ToString()}});
      }
    }
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, period_, [this] { return is_stopping_; })) return;
  }
}

}  // namespace millrace::api::entrypoint
