#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "api/admin/view.h"
#include "common/http/event_loop.h"
#include "common/log/log.h"

namespace millrace::api::entrypoint {

/// Asks the controller for the routing view at a fixed pace, on a thread of its own, and hands
/// every changed one to the event loop. A controller that is down or answers nonsense changes
/// nothing: the last view stays in force.
class ViewPoller {
 public:
  /// `on_view` runs on the loop, which must outlive the poller.
  ViewPoller(common::http::EventLoop& loop, Logger log, std::string controller_url,
             std::chrono::milliseconds period, std::function<void(admin::RoutingView)> on_view);
  /// Stops and joins; a view already handed over may still arrive.
  ~ViewPoller();

 private:
  void run();

  common::http::EventLoop& loop_;
  const Logger log_;
  const std::string url_;
  const std::chrono::milliseconds period_;
  const std::function<void(admin::RoutingView)> on_view_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace millrace::api::entrypoint
