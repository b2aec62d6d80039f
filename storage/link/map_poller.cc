#include "storage/link/map_poller.h"

#include <utility>

#include "common/http/status_code.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/map/storage_map.h"

namespace millrace::storage::link {
namespace {

constexpr std::chrono::milliseconds kShortestPause{50};

common::http::HttpClientOptions client_options() {
  common::http::HttpClientOptions options;
  options.connect_timeout = std::chrono::milliseconds(1000);
  options.timeout = std::chrono::milliseconds(5000);
  options.max_body_bytes = kMaxMapBytes;
  return options;
}

}  // namespace

absl::Status fetch_map(common::http::HttpClient& http, const std::string& controller_url,
                       MapCell& cell) {
  const std::shared_ptr<const StorageMap> held = cell.current();
  ASSIGN_OR_RETURN(const common::http::HttpResponse response,
                   http.get(str_cat(controller_url, "/api/v1/storage/map?after=",
                                    held == nullptr ? 0 : held->epoch)));
  if (response.status == 204) return absl::OkStatus();
  if (response.status != 200) {
    return absl::Status(common::http::code_of_http_status(response.status),
                        str_cat("the controller says: ", response.body.substr(0, 300)));
  }
  ASSIGN_OR_RETURN(const StorageMap map, decode_map(response.body));
  return cell.offer(map);
}

MapPoller::MapPoller(MapPollerOptions options, MapCell& cell, Logger log)
    : options_(std::move(options)), cell_(cell), log_(std::move(log)), http_(client_options()) {
  thread_ = std::thread([this] { run(); });
}

MapPoller::~MapPoller() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void MapPoller::refresh() {
  {
    std::lock_guard lock(mutex_);
    is_wanted_ = true;
  }
  changed_.notify_all();
}

void MapPoller::listen(std::function<void()> listener) {
  std::lock_guard lock(listening_);
  listener_ = std::move(listener);
}

void MapPoller::tell() {
  const std::shared_ptr<const StorageMap> map = cell_.current();
  if (map == nullptr || map->epoch == told_epoch_) return;
  std::lock_guard lock(listening_);
  if (!listener_) return;
  told_epoch_ = map->epoch;
  listener_();
}

void MapPoller::run() {
  while (true) {
    note(fetch_map(http_, options_.controller_url, cell_));
    tell();
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kShortestPause, [this] { return is_stopping_; });
    changed_.wait_for(lock, options_.interval - kShortestPause,
                      [this] { return is_stopping_ || is_wanted_; });
    if (is_stopping_) return;
    is_wanted_ = false;
  }
}

/// Says when answers stop coming and when they come again, not each time.
void MapPoller::note(const absl::Status& status) {
  if (status.ok() == is_answered_) return;
  is_answered_ = status.ok();
  if (status.ok()) {
    log_.info("storage_map_followed", {{"controller", options_.controller_url}});
  } else {
    log_.warn("storage_map_not_followed", {{"reason", message_of(status)}});
  }
}

}  // namespace millrace::storage::link
