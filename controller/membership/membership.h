#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "api/admin/node.h"
#include "common/time_point.h"

namespace millrace::controller::membership {

/// What is known of one node in this life of the controller.
struct NodeRecord {
  std::string node_id;
  std::string host_id;
  std::string address;
  std::string session_id;
  TimePoint last_heard;
  bool is_alive = false;
  bool has_reported = false;        ///< a heartbeat of this session came
  bool has_left = false;            ///< its last heartbeat said so; nothing runs there
  std::uint64_t applied_epoch = 0;  ///< of the assignment that the agent follows
  std::uint64_t applied_revision = 0;
  std::vector<api::admin::ProcessReport> processes;  ///< last reported, ordered by worker_id
};

/// Which nodes are there: they join, send heartbeats, and count as dead when these stop. Pure: no
/// clock, no I/O.
class Membership {
 public:
  static constexpr std::size_t kMaxNodes = 16384;

  explicit Membership(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  /// A node introduces itself. kAlreadyExists while another session of the same name is alive (two
  /// agents would start the same processes twice), kResourceExhausted over kMaxNodes.
  absl::Status join(const api::admin::NodeJoin& join, TimePoint now);

  /// Takes a report over. Returns whether anything but the time changed. kNotFound when this
  /// session has not joined (the agent then joins again); kInvalidArgument when a process is listed
  /// twice.
  absl::StatusOr<bool> heartbeat(std::string_view node_id, const api::admin::Heartbeat& heartbeat,
                                 TimePoint now);

  /// Marks as dead what has been silent for the timeout; returns their names in order.
  std::vector<std::string> expire(TimePoint now);

  /// When expire() is next due; nullopt while no node is alive.
  std::optional<TimePoint> next_expiry() const;

  const std::map<std::string, NodeRecord, std::less<>>& nodes() const { return nodes_; }

 private:
  const std::chrono::milliseconds timeout_;
  std::map<std::string, NodeRecord, std::less<>> nodes_;
};

}  // namespace millrace::controller::membership
