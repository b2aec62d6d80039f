#include "storage/link/node_link.h"

#include <algorithm>
#include <utility>

#include "common/http/status_code.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/link/map_poller.h"

namespace millrace::storage::link {
namespace {

constexpr std::chrono::milliseconds kFirstRetry{100};
constexpr std::chrono::milliseconds kLongestRetry{1000};
constexpr std::chrono::milliseconds kShortestPause{10};

common::http::HttpClientOptions client_options() {
  common::http::HttpClientOptions options;
  options.connect_timeout = std::chrono::milliseconds(1000);
  options.timeout = std::chrono::milliseconds(2000);
  options.max_body_bytes = kMaxMapBytes;
  return options;
}

}  // namespace

NodeLink::NodeLink(NodeLinkOptions options, MapCell& cell, ReportSource source, ReplySink sink,
                   Logger log)
    : options_(std::move(options)),
      cell_(cell),
      source_(std::move(source)),
      sink_(std::move(sink)),
      log_(std::move(log)),
      http_(client_options()) {
  thread_ = std::thread([this] { run(); });
}

NodeLink::~NodeLink() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NodeLink::report_soon() {
  {
    std::lock_guard lock(mutex_);
    has_news_ = true;
  }
  changed_.notify_all();
}

absl::Status NodeLink::health() const {
  std::lock_guard lock(mutex_);
  return health_;
}

void NodeLink::run() {
  std::chrono::milliseconds retry = kFirstRetry;
  while (true) {
    const absl::StatusOr<api::admin::StorageReportReply> reply = exchange();
    note(reply.status());
    std::chrono::milliseconds pause = retry;
    if (reply.ok()) {
      sink_(*reply);
      retry = kFirstRetry;
      pause = std::max(reply->report_interval, kShortestPause);
    } else {
      retry = std::min(retry * 2, kLongestRetry);
    }
    std::unique_lock lock(mutex_);
    // News must not turn the retries into a busy loop.
    changed_.wait_for(lock, std::min(pause, kFirstRetry), [this] { return is_stopping_; });
    changed_.wait_for(lock, pause - std::min(pause, kFirstRetry),
                      [this] { return is_stopping_ || has_news_; });
    has_news_ = false;
    if (is_stopping_) return;
  }
}

absl::StatusOr<api::admin::StorageReportReply> NodeLink::exchange() {
  ASSIGN_OR_RETURN(const common::http::HttpResponse response,
                   http_.post(str_cat(options_.controller_url, "/api/v1/storage/nodes/",
                                      options_.node_id, "/report"),
                              to_json(source_())));
  if (response.status != 200) {
    return absl::Status(common::http::code_of_http_status(response.status),
                        str_cat("the controller says: ", response.body.substr(0, 300)));
  }
  ASSIGN_OR_RETURN(api::admin::StorageReportReply reply,
                   api::admin::parse_storage_report_reply(response.body));
  const std::shared_ptr<const StorageMap> held = cell_.current();
  if (held == nullptr || held->epoch < reply.map_epoch) {
    RETURN_IF_ERROR(fetch_map(http_, options_.controller_url, cell_));
  }
  return reply;
}

void NodeLink::note(const absl::Status& status) {
  {
    std::lock_guard lock(mutex_);
    const bool is_same = status == health_;
    health_ = status;
    if (is_same) return;
  }
  if (status.ok()) {
    log_.info("controller_answers", {{"controller", options_.controller_url}});
  } else {
    log_.warn("controller_does_not_answer", {{"reason", message_of(status)}});
  }
}

}  // namespace millrace::storage::link
