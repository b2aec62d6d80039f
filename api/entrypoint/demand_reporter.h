#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "api/admin/entrypoint_report.h"
#include "common/http/event_loop.h"
#include "common/log/log.h"

namespace millrace::api::entrypoint {

/// Tells the controller at a fixed pace what demand this entrypoint saw and what workers say that
/// their steps cost, on a thread of its own. A controller that is down or refuses changes nothing:
/// a report counts from the start of the process, so the next one makes up for it.
class DemandReporter {
 public:
  /// `collect` runs on the loop, which must outlive the reporter; at most one call of it waits
  /// there. It fills in everything but the sequence. `entrypoint_id` must be a plain id.
  DemandReporter(common::http::EventLoop& loop, Logger log, std::string_view controller_url,
                 std::string_view entrypoint_id, std::chrono::milliseconds period,
                 std::function<admin::EntrypointReport()> collect);
  /// Stops and joins; `collect` runs no more. Call on the loop's thread, or when the loop does not
  /// run.
  ~DemandReporter();
  DemandReporter(const DemandReporter&) = delete;
  DemandReporter& operator=(const DemandReporter&) = delete;

 private:
  /// What the thread and the loop share; it outlives the reporter in a call that never came to run.
  struct Shared;

  void run();

  common::http::EventLoop& loop_;
  const Logger log_;
  const std::string url_;
  const std::chrono::milliseconds period_;
  const std::function<admin::EntrypointReport()> collect_;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace millrace::api::entrypoint
