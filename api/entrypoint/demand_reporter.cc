#include "api/entrypoint/demand_reporter.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "common/http/http_client.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {

struct DemandReporter::Shared {
  std::mutex mutex;
  std::condition_variable wake;
  bool is_stopping = false;                       // guarded by mutex
  std::optional<admin::EntrypointReport> report;  // guarded by mutex; collected, not taken yet

  bool is_ending() {
    const std::lock_guard lock(mutex);
    return is_stopping;
  }

  /// Waits for what the loop collects; nullopt = the end.
  std::optional<admin::EntrypointReport> take() {
    std::unique_lock lock(mutex);
    wake.wait(lock, [this] { return is_stopping || report.has_value(); });
    if (is_stopping) return std::nullopt;
    return std::exchange(report, std::nullopt);
  }

  /// False at the end.
  bool pause(std::chrono::milliseconds period) {
    std::unique_lock lock(mutex);
    return !wake.wait_for(lock, period, [this] { return is_stopping; });
  }
};

namespace {

absl::Status send(common::http::HttpClient& client, const std::string& url,
                  const admin::EntrypointReport& report) {
  ASSIGN_OR_RETURN(const common::http::HttpResponse response,
                   client.post(url, admin::to_json(report)));
  if (response.status == 204) return absl::OkStatus();
  return absl::UnavailableError(
      str_cat("the controller answered ", response.status, ": ", response.body));
}

}  // namespace

DemandReporter::DemandReporter(common::http::EventLoop& loop, Logger log,
                               std::string_view controller_url, std::string_view entrypoint_id,
                               std::chrono::milliseconds period,
                               std::function<admin::EntrypointReport()> collect)
    : loop_(loop),
      log_(std::move(log)),
      url_(str_cat(controller_url, "/api/v1/entrypoints/", entrypoint_id, "/report")),
      period_(period),
      collect_(std::move(collect)),
      shared_(std::make_shared<Shared>()),
      thread_([this] { run(); }) {}

DemandReporter::~DemandReporter() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->is_stopping = true;
  }
  shared_->wake.notify_all();
  thread_.join();
}

void DemandReporter::run() {
  // A hung controller must not hold up the end of the process for long.
  common::http::HttpClient client({.connect_timeout = std::chrono::milliseconds(500),
                                   .timeout = std::chrono::milliseconds(1000)});
  std::uint64_t sequence = 0;
  bool was_ok = true;
  do {
    // The reporter ends on the loop's thread: a call that finds it alive keeps it so.
    loop_.post([shared = shared_, this] {
      if (shared->is_ending()) return;
      admin::EntrypointReport collected = collect_();
      const std::lock_guard lock(shared->mutex);
      shared->report = std::move(collected);
      shared->wake.notify_all();
    });
    std::optional<admin::EntrypointReport> report = shared_->take();
    if (!report) return;
    report->sequence = ++sequence;
    const absl::Status status = send(client, url_, *report);
    if (status.ok() != was_ok) {
      was_ok = status.ok();
      if (was_ok) {
        log_.info("demand_reported_again");
      } else {
        log_.warn("demand_not_reported", {{"controller", url_}, {"reason", status.ToString()}});
      }
    }
  } while (shared_->pause(period_));
}

}  // namespace millrace::api::entrypoint
