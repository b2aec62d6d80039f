#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "api/admin/storage.h"
#include "common/http/http_client.h"
#include "common/log/log.h"
#include "storage/map/map_cell.h"

namespace millrace::storage::link {

struct NodeLinkOptions {
  std::string controller_url;  ///< http://host:port
  std::string node_id;
};

/// A storage node's line to the controller, on a thread of its own: it reports how the node is,
/// takes a newer map over into the cell, and hands on what people asked for. A controller that is
/// away changes nothing: the node goes on with the map that it has.
class NodeLink {
 public:
  /// Asked before every report, on the link's thread.
  using ReportSource = std::function<api::admin::StorageReport()>;
  /// Told every answer, on the link's thread, when the map that it names has been taken over.
  using ReplySink = std::function<void(const api::admin::StorageReportReply&)>;

  /// `cell` must outlive the link.
  NodeLink(NodeLinkOptions options, MapCell& cell, ReportSource source, ReplySink sink, Logger log);
  ~NodeLink();

  /// Report now. Any thread.
  void report_soon();
  /// OK while the last report was answered; else why not. Any thread.
  absl::Status health() const;

 private:
  void run();
  absl::StatusOr<api::admin::StorageReportReply> exchange();
  void note(const absl::Status& status);

  const NodeLinkOptions options_;
  MapCell& cell_;
  const ReportSource source_;
  const ReplySink sink_;
  const Logger log_;
  common::http::HttpClient http_;  // thread_
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ = false;                                          // guarded by mutex_
  bool has_news_ = false;                                             // guarded by mutex_
  absl::Status health_ = absl::UnavailableError("not reported yet");  // guarded by mutex_
  std::thread thread_;
};

}  // namespace millrace::storage::link
