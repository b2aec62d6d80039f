#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "common/http/http_client.h"
#include "common/log/log.h"
#include "storage/map/map_cell.h"

namespace millrace::storage::link {

/// Gets the controller's map when it is newer than the one in `cell`. OK when there was nothing
/// newer, too. kNotFound: the cluster stores no KV; kUnavailable: no answer.
absl::Status fetch_map(common::http::HttpClient& http, const std::string& controller_url,
                       MapCell& cell);

struct MapPollerOptions {
  std::string controller_url;  ///< http://host:port
  std::chrono::milliseconds interval{1000};
};

/// Keeps the map of a client (a fetcher, an entrypoint) in step with the controller's, on a thread
/// of its own. A controller that is away changes nothing: the map at hand goes on.
class MapPoller {
 public:
  /// `cell` must outlive the poller.
  MapPoller(MapPollerOptions options, MapCell& cell, Logger log);
  ~MapPoller();

  /// Ask now: a storage node has named a newer map. Any thread; asks at most every 50 ms.
  void refresh();

 private:
  friend class MapListener;
  void listen(std::function<void()> listener);
  void run();
  void note(const absl::Status& status);
  void tell();

  const MapPollerOptions options_;
  MapCell& cell_;
  const Logger log_;
  common::http::HttpClient http_;  // thread_
  bool is_answered_ = true;        // thread_
  std::uint64_t told_epoch_ = 0;   // thread_
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ = false;  // guarded by mutex_
  bool is_wanted_ = false;    // guarded by mutex_
  std::mutex listening_;
  std::function<void()> listener_;  // guarded by listening_
  std::thread thread_;
};

/// Is told of every map that the poller's cell gets, on the poller's thread, for as long as it
/// lives; when its destructor returns, the function is not running any more. One for a poller,
/// which must outlive it.
class MapListener {
 public:
  MapListener(MapPoller& poller, std::function<void()> function) : poller_(poller) {
    poller_.listen(std::move(function));
  }
  ~MapListener() { poller_.listen({}); }
  MapListener(const MapListener&) = delete;
  MapListener& operator=(const MapListener&) = delete;

 private:
  MapPoller& poller_;
};

}  // namespace millrace::storage::link
