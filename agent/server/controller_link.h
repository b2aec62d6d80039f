#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "agent/telemetry/agent_metrics.h"
#include "api/admin/node.h"
#include "common/http/http_client.h"
#include "common/log/log.h"

namespace millrace::agent::server {

/// What the link tells the controller.
struct LinkReport {
  std::uint64_t epoch = 0;
  std::uint64_t revision = 0;
  std::vector<api::admin::ProcessReport> processes;
  bool operator==(const LinkReport&) const = default;
};

struct LinkOptions {
  std::string controller_url;  ///< without a slash at the end
  api::admin::NodeJoin self;   ///< its epoch is taken from the reports
};

/// Keeps the controller informed, on a thread of its own: joins, then sends a heartbeat at once on
/// every change of the report and otherwise at the interval that the controller asked for. While
/// the controller is away it tries again, at most a second apart. One exchange at a time, so that
/// replies arrive in order.
class ControllerLink {
 public:
  /// `on_reply` runs on the link's thread with every reply; it must only pass the value on.
  using ReplyReceiver = std::function<void(api::admin::HeartbeatReply reply)>;

  ControllerLink(LinkOptions options, ReplyReceiver on_reply, Logger log,
                 const telemetry::AgentMetrics& metrics);
  /// Ends the thread; what is being sent is waited for.
  ~ControllerLink();

  void start();

  /// The newest state of the node. Any thread.
  void publish(LinkReport report);

  /// The last published state, and whether the last heartbeat was answered. Any thread.
  LinkReport report() const;
  bool is_connected() const;

  /// Tells the controller once, without trying again, that the node leaves; then ends the thread.
  void leave();

 private:
  void run();
  bool wait_for_turn(std::chrono::milliseconds pause);
  bool join(const LinkReport& report);
  bool send_heartbeat(const LinkReport& report);
  void set_connected(bool is_connected, std::string_view reason);
  absl::StatusOr<std::string> post(const std::string& path, std::string body);
  void stop_thread();

  const LinkOptions options_;
  const ReplyReceiver on_reply_;
  const Logger log_;
  const telemetry::AgentMetrics& metrics_;
  common::http::HttpClient client_;  // the link's thread; after its end, leave()
  bool has_joined_ = false;          // as above
  std::chrono::milliseconds interval_{500};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  LinkReport report_;          // guarded by mutex_
  bool has_news_ = true;       // guarded by mutex_
  bool is_connected_ = false;  // guarded by mutex_
  bool is_stopping_ = false;   // guarded by mutex_

  std::thread thread_;
};

}  // namespace millrace::agent::server
